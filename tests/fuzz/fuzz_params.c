/* The parameters of an inference request (daemon/worker/serve/params.h). */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "daemon/worker/serve/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct serve_params p;
    struct pd_why why;

    if (serve_params_complete((const char *)bytes, len, &p, &why) == PD_OK) {
        enum pd_err err = serve_sampling_check(&p.sampling, INT32_MAX, &why);

        /* What was read is in range: only max_tokens 0 without echo is left to the check. */
        if (err != PD_OK && !(p.sampling.max_tokens == 0 && !p.sampling.echo) && p.sampling.biases == 0)
            abort();
        if (!isfinite(p.sampling.temperature) || !isfinite(p.sampling.top_p))
            abort();
    }
    if (serve_params_infer((const char *)bytes, len, &p, &why) == PD_OK && p.outputs == 0)
        abort();
    return 0;
}
