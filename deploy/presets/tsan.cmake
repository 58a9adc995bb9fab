# ThreadSanitizer, for everything that has threads.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(POLYD_SANITIZE "thread" CACHE STRING "")
set(POLYD_TESTS ON CACHE BOOL "")
