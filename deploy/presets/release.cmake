# Release build: no tests, and warnings are not errors, because a packager's compiler may be newer.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(POLYD_WERROR OFF CACHE BOOL "")
set(POLYD_TESTS OFF CACHE BOOL "")
set(POLYD_BENCH OFF CACHE BOOL "")
