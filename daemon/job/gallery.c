/* The gallery of formulas: one row each. */
#include "daemon/job/gallery.h"

#include "kernels/base/json.h"

/* A learned scalar; per and form NULL: the usual ones. */
struct scalar {
    const char *name, *init, *per, *form;
};

struct row {
    const char *name, *formula;
    struct scalar params[2]; /* up to the first without a name */
    const char *source, *text;
    bool causal;
};

/* clang-format off */
static const struct row rows[] = {
    {"softmax", "exp(s)/rowsum(exp(s))", {{0}}, "Vaswani et al., arXiv 1706.03762",
     "Each row is a distribution over the keys.", false},
    {"polynomial", "s^3/sqrt(n)", {{0}}, "arXiv 2410.18613",
     "A cube over the root of N: negative weights, and no sum over the row.", false},
    {"learned scale", "a*s^3", {{"a", "1/sqrt(n)", "head", NULL}}, "arXiv 2410.18613",
     "The cube with a factor that each head learns.", false},
    {"sigmoid", "sigmoid(s - log(n))", {{0}}, "arXiv 2409.04431",
     "Each pair by itself; the bias -log N starts the row's sum near 1.", false},
    {"scaled sigmoid", "sigmoid(s)*n^(-0.5)", {{0}}, "note on sigmoid attention",
     "A sigmoid without bias, over a power of N.", false},
    {"ReLU", "relu(s)/n", {{0}}, "arXiv 2309.08586",
     "Negative logits give nothing; the mean over the keys replaces the sum.", false},
    {"squared ReLU", "relu(s)^2/n", {{0}}, "arXiv 2202.10447",
     "As ReLU, with a slope that grows with the logit.", false},
    {"rational", "s^3/(1+abs(s))", {{0}}, "variant of the cube",
     "A cube near 0 that grows as a square for large logits.", false},
    {"softplus", "softplus(s)/n", {{0}}, "arXiv 2309.08586",
     "A smooth ReLU: every pair keeps some weight.", false},
    {"Taylor softmax", "t = 1+s+s^2/2; t/rowsum(t)", {{0}}, "arXiv 1511.05042",
     "The exponential by its first three terms, which stay positive.", false},
    {"periodic", "t = sin(s+pi/4)^2; t/rowsum(t)", {{0}}, "arXiv 2108.07153",
     "A bounded wave in place of the exponential: large logits do not saturate it.", false},
    {"soft cap", "softmax(c*tanh(s/c))", {{"c", "50", NULL, "log"}}, "Gemma 2, arXiv 2408.00118",
     "Logits are held between -c and c before softmax.", false},
    {"scalable softmax", "softmax(a*log(ni)*s)", {{"a", "1/log(1+n)", "head", NULL}}, "arXiv 2501.19399",
     "Logits grow with the logarithm of the number of keys, so that long rows stay sharp.", false},
    {"temperature by position", "softmax(s*(1+0.1*log(1+floor(i/8192))))", {{0}}, "Llama 4",
     "Queries far into a text get larger logits.", true},
    {"ALiBi", "softmax(s - 2^(-8*(h+1)/H)*(i-j))", {{0}}, "arXiv 2108.12409",
     "Distance costs, in each head by another slope.", true},
    {"log distance", "softmax(s - a*log(1+b*(i-j)))",
     {{"a", "1", "head", "log"}, {"b", "1", "head", "log"}},
     "KERPLE, arXiv 2205.09921", "Distance costs by its logarithm, with learned strength.", true},
    {"softmax plus one", "exp(s)/(1+rowsum(exp(s)))", {{0}}, "E. Miller, Attention is off by one",
     "A head may attend to nothing.", false},
    {"learned sink", "exp(s)/(exp(b)+rowsum(exp(s)))", {{"b", "0", "head", NULL}}, "gpt-oss",
     "As softmax plus one, with a weight of nothing that each head learns.", false},
    {"softpick", "relu(exp(s)-1)/(1e-8+rowsum(abs(exp(s)-1)))", {{0}}, "arXiv 2504.20966",
     "Logits below 0 give exactly 0 but still count in the sum: no sink, no large activations.", false},
    {"normalised fourth power", "s^4/(1+rowsum(s^4))", {{0}}, "PolySketchFormer, arXiv 2310.01655",
     "An even power over one plus its row's sum.", false},
    {"retention", "t = s*g^(i-j); t/max(abs(rowsum(t)),1)",
     {{"g", "1-2^(-5-h)", "head", "sigmoid"}}, "RetNet, arXiv 2307.08621",
     "The logit itself, which decays with distance.", true},
    {"ReLU power over sum", "relu(s)^t/(1e-8+rowsum(relu(s)^t))^b",
     {{"t", "2", NULL, "log"}, {"b", "1", NULL, "log"}}, "ABLAB2022/BAMF",
     "A learned power of ReLU over a learned power of its sum.", false},
    {"unit rows", "s/sqrt(rowsum(s^2))", {{0}}, "l2 normalisation",
     "Each row has length 1, so that the norm of A is the root of N.", false},
    {"normalised square", "s^2/rowsum(s^2)", {{0}}, "normalised powers, p = 2",
     "A distribution whose weights are squares: the sign of the logit does not count.", false},
    {"elastic softmax", "relu(softmax(s) + a/ni)", {{"a", "0", "head", NULL}}, "arXiv 2601.00919",
     "A learned offset cuts small weights of softmax to 0; takes two passes over the keys.", false},
};
/* clang-format on */

static void put_params(struct pd_buf *b, const struct scalar params[2])
{
    pd_json_open(b, '{');
    for (int k = 0; k < 2 && params[k].name; k++) {
        pd_json_key(b, params[k].name);
        pd_json_open(b, '{');
        pd_json_kv_str(b, "init", params[k].init);
        if (params[k].per)
            pd_json_kv_str(b, "per", params[k].per);
        if (params[k].form)
            pd_json_kv_str(b, "form", params[k].form);
        pd_json_close(b, '}');
    }
    pd_json_close(b, '}');
}

enum pd_err job_gallery_json(struct pd_buf *ret_json, struct pd_why *why)
{
    pd_json_open(ret_json, '{');
    pd_json_key(ret_json, "formulas");
    pd_json_open(ret_json, '[');
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pd_json_open(ret_json, '{');
        pd_json_kv_str(ret_json, "name", rows[i].name);
        pd_json_kv_str(ret_json, "formula", rows[i].formula);
        pd_json_key(ret_json, "params");
        put_params(ret_json, rows[i].params);
        pd_json_kv_str(ret_json, "source", rows[i].source);
        pd_json_kv_str(ret_json, "text", rows[i].text);
        pd_json_kv_bool(ret_json, "causal", rows[i].causal);
        pd_json_close(ret_json, '}');
    }
    pd_json_close(ret_json, ']');
    pd_json_close(ret_json, '}');
    return pd_buf_err(ret_json) == PD_OK ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the gallery");
}
