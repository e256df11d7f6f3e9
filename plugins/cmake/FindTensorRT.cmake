# TensorRT's headers; nothing is linked. Looked for, in this order: TENSORRT_INCLUDE_DIR, the CMake variable and then
# the environment's; the system's places; TRTBUILD_FALLBACK_INCLUDE_DIR, which `trtbuild plugin build` sets to headers
# from a wheel. Sets TensorRT_INCLUDE_DIR and TensorRT_VERSION.

set(_asked "${TENSORRT_INCLUDE_DIR}")
if(NOT _asked)
    set(_asked "$ENV{TENSORRT_INCLUDE_DIR}")
endif()
if(_asked)
    find_path(TensorRT_INCLUDE_DIR NvInfer.h PATHS "${_asked}" NO_DEFAULT_PATH)
    if(NOT TensorRT_INCLUDE_DIR)
        message(FATAL_ERROR "TENSORRT_INCLUDE_DIR is ${_asked}, and there is no NvInfer.h in it.")
    endif()
endif()
find_path(TensorRT_INCLUDE_DIR NvInfer.h)
if(TRTBUILD_FALLBACK_INCLUDE_DIR)
    find_path(TensorRT_INCLUDE_DIR NvInfer.h PATHS "${TRTBUILD_FALLBACK_INCLUDE_DIR}" NO_DEFAULT_PATH)
endif()

if(TensorRT_INCLUDE_DIR)
    set(_numbers "")
    file(READ "${TensorRT_INCLUDE_DIR}/NvInferVersion.h" _text)
    foreach(_part MAJOR MINOR PATCH)
        # Up to 10.13 NV_TENSORRT_MAJOR is a number, since then another macro that is one.
        string(REGEX MATCH "#define (NV_TENSORRT|TRT)_${_part}(_ENTERPRISE)? +([0-9]+)" _found "${_text}")
        list(APPEND _numbers "${CMAKE_MATCH_3}")
    endforeach()
    list(JOIN _numbers "." TensorRT_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
    TensorRT
    REQUIRED_VARS TensorRT_INCLUDE_DIR
    VERSION_VAR TensorRT_VERSION
)
mark_as_advanced(TensorRT_INCLUDE_DIR)
