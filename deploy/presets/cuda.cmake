# Release build for machines with NVIDIA GPUs: the plug-ins with code for Ampere, Hopper and Blackwell.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(POLYD_CUDA ON CACHE STRING "")
set(POLYD_CUDA_ARCHS "80;90a;100" CACHE STRING "")
set(POLYD_WERROR OFF CACHE BOOL "")
set(POLYD_TESTS OFF CACHE BOOL "")
set(POLYD_BENCH OFF CACHE BOOL "")
