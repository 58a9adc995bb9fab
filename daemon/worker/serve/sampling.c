#include <math.h>

#include "daemon/worker/serve/serve.h"

const char *serve_finish_name(enum serve_finish finish)
{
    static const char *const names[] = {NULL, "stop", "length"};

    return names[finish];
}

void serve_sampling_default(struct serve_sampling *ret)
{
    *ret = (struct serve_sampling){
        .max_tokens = 16, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
}

enum pd_err serve_sampling_check(const struct serve_sampling *p, int64_t vocabulary, struct pd_why *why)
{
    if (p->max_tokens < 0 || p->max_tokens > SERVE_TOKENS_MAX)
        return pd_fail(why, PD_ERR_INVALID, "max_tokens must be 0..%d", SERVE_TOKENS_MAX);
    if (p->max_tokens == 0 && !p->echo)
        return pd_fail(why, PD_ERR_INVALID, "max_tokens may be 0 only with echo");
    if (!(p->temperature >= 0 && p->temperature <= 2))
        return pd_fail(why, PD_ERR_INVALID, "temperature must be 0..2");
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return pd_fail(why, PD_ERR_INVALID, "top_p must be 0..1");
    if (p->top_k < 0 || p->top_k > SERVE_TOP_K_MAX)
        return pd_fail(why, PD_ERR_INVALID, "top_k must be 0..%d", SERVE_TOP_K_MAX);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return pd_fail(why, PD_ERR_INVALID, "min_p must be 0..1");
    if (!(p->repetition_penalty >= 0.1 && p->repetition_penalty <= 10))
        return pd_fail(why, PD_ERR_INVALID, "repetition_penalty must be 0.1..10");
    if (!(fabs(p->presence_penalty) <= 2) || !(fabs(p->frequency_penalty) <= 2))
        return pd_fail(why, PD_ERR_INVALID, "presence_penalty and frequency_penalty must be -2..2");
    if (p->logprobs < -1 || p->logprobs > (int32_t)SERVE_TOP_MAX)
        return pd_fail(why, PD_ERR_INVALID, "logprobs must be 0..%u", SERVE_TOP_MAX);
    if (p->stops > SERVE_STOPS_MAX)
        return pd_fail(why, PD_ERR_INVALID, "at most %u stop strings", SERVE_STOPS_MAX);
    for (uint32_t i = 0; i < p->stops; i++) {
        if (p->stop[i].len == 0 || p->stop[i].len > SERVE_STOP_BYTES_MAX)
            return pd_fail(why, PD_ERR_INVALID, "a stop string has 1..%u bytes", SERVE_STOP_BYTES_MAX);
    }
    if (p->biases > SERVE_BIAS_MAX)
        return pd_fail(why, PD_ERR_INVALID, "logit_bias has at most %u entries", SERVE_BIAS_MAX);
    for (uint32_t i = 0; i < p->biases; i++) {
        if (p->bias[i].token < 0 || p->bias[i].token >= vocabulary)
            return pd_fail(why, PD_ERR_INVALID, "logit_bias: there is no token %d", p->bias[i].token);
        if (!(fabsf(p->bias[i].bias) <= 100))
            return pd_fail(why, PD_ERR_INVALID, "logit_bias: a bias must be -100..100");
    }
    return PD_OK;
}
