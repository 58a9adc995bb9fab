# For development: optimised enough to train, warnings are errors. Symbols for backtraces with lines. To see variables
# in a debugger, set CMAKE_C_FLAGS_RELWITHDEBINFO to "-O2 -g -DNDEBUG"; the build is then a fifth slower.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG" CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG" CACHE STRING "")
set(POLYD_WERROR ON CACHE BOOL "")
set(POLYD_TESTS ON CACHE BOOL "")
