/* The job document (daemon/spec): spec_fuzz checks its own invariants and aborts when one breaks. */
#include "daemon/spec/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    spec_fuzz(bytes, len);
    return 0;
}
