/* kernels/backend/cuda/rtc_headers.h: the headers that NVRTC is given, by their names in #include. The build makes the tables
 * (deploy/cmake/embed-headers.cmake). */
#pragma once

extern const int cuda_rtc_headers; /* how many */
extern const char *const cuda_rtc_header_name[];
extern const char *const cuda_rtc_header_text[];
