# libFuzzer targets (clang) under AddressSanitizer and UndefinedBehaviorSanitizer: tests/fuzz/run uses this.
set(CMAKE_C_COMPILER clang CACHE STRING "")
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(POLYD_SANITIZE "address" CACHE STRING "")
set(POLYD_FUZZ ON CACHE BOOL "")
set(POLYD_TESTS OFF CACHE BOOL "")
set(POLYD_BENCH OFF CACHE BOOL "")
set(POLYD_WERROR OFF CACHE BOOL "")
