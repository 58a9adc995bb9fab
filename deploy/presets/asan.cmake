# AddressSanitizer with UndefinedBehaviorSanitizer and leak detection.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(POLYD_SANITIZE "address" CACHE STRING "")
set(POLYD_TESTS ON CACHE BOOL "")
