/* Enough of libnvinfer, libnvinfer_plugin and libnvonnxparser for TensorRT's Python bindings to be imported and their
   classes inspected: the symbols they are linked against, none of which does anything. */
#define EMPTY(symbol) \
    void* symbol(void) { return 0; }

EMPTY(createInferBuilder_INTERNAL)
EMPTY(createInferRefitter_INTERNAL)
EMPTY(createInferRuntime_INTERNAL)
EMPTY(createNvOnnxParserRefitter_INTERNAL)
EMPTY(createNvOnnxParser_INTERNAL)
EMPTY(getBuilderPluginRegistry)
EMPTY(getNvOnnxParserVersion)
EMPTY(getPluginRegistry)
EMPTY(initLibNvInferPlugins)
