/* A plug-in from another version: only its first member is to be looked at. */
#include <stdint.h>

const void *pk_backend_entry(void);

const void *pk_backend_entry(void)
{
    static const uint32_t abi = 999;

    return &abi;
}
