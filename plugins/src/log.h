// Messages, through the logger of the TensorRT that is loaded, else on stderr.
#pragma once

#include <NvInfer.h>

#include <exception>

namespace trtbuild {

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

void log(nvinfer1::ILogger::Severity severity, char const* text) noexcept;

// Runs `work`; an exception becomes one message, and `failed` is returned: none may pass TensorRT's boundary.
template <class Result, class Work>
Result guarded(Result failed, Work&& work) noexcept {
    try {
        return work();
    } catch (std::exception const& error) {
        log(nvinfer1::ILogger::Severity::kERROR, error.what());
    } catch (...) {
        log(nvinfer1::ILogger::Severity::kERROR, "an exception of an unknown type");
    }
    return failed;
}

}  // namespace trtbuild
