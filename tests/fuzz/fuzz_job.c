/* The job document (daemon/job): job_fuzz checks its own invariants and aborts when one breaks. */
#include "daemon/job/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    job_fuzz(bytes, len);
    return 0;
}
