# What is shipped: no tests, warnings do not stop a packager's newer compiler.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(POLYD_WERROR OFF CACHE BOOL "")
set(POLYD_TESTS OFF CACHE BOOL "")
set(POLYD_BENCH OFF CACHE BOOL "")
