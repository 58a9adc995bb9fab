/* kernels/base/crc32c.h: CRC-32C (Castagnoli, reflected polynomial 0x82F63B78). */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Checksum of `len` bytes; pass the earlier result as `crc` to go on, 0 to begin.
 * pd_crc32c(0, "123456789", 9) is 0xE3069283. */
uint32_t pd_crc32c(uint32_t crc, const void *bytes, size_t len);
