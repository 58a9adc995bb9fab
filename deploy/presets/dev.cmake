# Everyday work: optimised enough to train, symbols kept, warnings are errors.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(POLYD_WERROR ON CACHE BOOL "")
set(POLYD_TESTS ON CACHE BOOL "")
