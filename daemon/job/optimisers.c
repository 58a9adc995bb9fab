/* The optimisers that a document may name: a row each. What they compute is the worker's
 * (daemon/worker/train/optim). */
#include "daemon/job/internal.h"

#define OPTIMISERS(X) X(adamw) X(msgdw) X(msgd_l2) X(lbfgs)

static const struct job_optimiser adamw = {
    .available = true, .betas = true, .lr = 1e-3, .weight_decay = -1, .scale_param = "direct"};
/* Plain momentum on a learned scale itself can jump across zero: its logarithm is trained. */
static const struct job_optimiser msgdw = {
    .available = true, .momentum = true, .lr = 0.3, .weight_decay = 1e-4, .scale_param = "log"};
static const struct job_optimiser msgd_l2 = {
    .available = true, .momentum = true, .lr = 0.3, .weight_decay = 1e-4, .scale_param = "direct"};
static const struct job_optimiser lbfgs = {
    .available = true, .searches = true, .lr = 1, .weight_decay = 0, .scale_param = "direct"};

#define ROW(name) &name,
#define NAME(name) #name,
static const struct job_optimiser *const rows[] = {OPTIMISERS(ROW)};
static const char *const names[] = {OPTIMISERS(NAME)};
#define COUNT (sizeof rows / sizeof *rows)
const struct job_names job_names_optimiser = {COUNT, names};

const struct job_optimiser *job_optimiser(int name)
{
    return rows[(unsigned)name < COUNT ? name : 0];
}

const char *job_optimiser_name(int name)
{
    return (unsigned)name < COUNT ? names[name] : NULL;
}

bool job_optimiser_runs(unsigned name)
{
    return name < COUNT && rows[name]->available;
}
