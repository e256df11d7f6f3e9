#include "log.h"

#include <atomic>
#include <cstdio>

#include "loaded.h"

namespace trtbuild {
namespace {

using nvinfer1::ILogger;
using nvinfer1::ILoggerFinder;

std::atomic<ILoggerFinder*> logger_finder{nullptr};

constexpr size_t LONGEST = 1024;

// The caller's own logger, else the one that TensorRT was last given.
ILogger* find_logger() {
    auto const get = reinterpret_cast<ILogger* (*)()>(tensorrt_symbol("getLogger"));
    if (get == nullptr) return nullptr;  // and what handed the finder over is of another layout
    ILoggerFinder* const finder = logger_finder;
    ILogger* const own = finder != nullptr ? finder->findLogger() : nullptr;
    return own != nullptr ? own : get();
}

}  // namespace

void set_logger_finder(ILoggerFinder* finder) noexcept { logger_finder = finder; }

void log(ILogger::Severity severity, char const* text) noexcept {
    char message[LONGEST];  // no allocation: one may have failed just now
    std::snprintf(message, sizeof(message), "RopeAlibiAttention: %s", text);
    try {
        if (ILogger* const logger = find_logger()) {
            logger->log(severity, message);
            return;
        }
    } catch (...) {
        // The application's finder threw; stderr is left.
    }
    std::fprintf(stderr, "%s\n", message);
}

}  // namespace trtbuild
