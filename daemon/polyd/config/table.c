#include "daemon/polyd/config/table.h"

#include "kernels/base/log.h"

static const char *const yes_choices[] = {"no", "yes", NULL};
static const int64_t yes_values[] = {0, 1};
static const char *const decode_choices[] = {"auto", "cache", "state", NULL};
static const int64_t decode_values[] = {0, 1, 2};
static const char *const serve_device_choices[] = {"cpu", "cuda", NULL};
static const int64_t serve_device_values[] = {CONFIG_SERVE_CPU, CONFIG_SERVE_CUDA};
static const char *const weights_choices[] = {"f32", "bf16", NULL};
static const int64_t weights_values[] = {CONFIG_WEIGHTS_F32, CONFIG_WEIGHTS_BF16};
static const char *const level_choices[] = {"error", "warning", "info", "debug", NULL};
static const int64_t level_values[] = {PD_LOG_ERROR, PD_LOG_WARNING, PD_LOG_INFO, PD_LOG_DEBUG};
static const char *const checkpoint_choices[] = {"internal", "external", NULL};
static const int64_t checkpoint_values[] = {0, 1};

#define ROW(s, k, t, member) .section = s, .key = k, .type = t, .offset = offsetof(struct config, member)
#define INT(lo, hi, d) .min = (lo), .max = (hi), .def = d

/* In the order of the help. Data roots are a section of their own: any key is a name. */
const struct config_row config_rows[] = {
    {ROW("server", "listen", CONFIG_T_ADDRESS, server.listen), .def = "127.0.0.1", .flag = "listen",
     .arg = "ADDRESS",
     .meaning = "numeric address to listen on; an address other than loopback requires insecure_listen"},
    {ROW("server", "insecure_listen", CONFIG_T_CHOICE, server.insecure_listen), .def = "no",
     .choices = yes_choices, .values = yes_values, .flag = "insecure-listen", .bare = "yes", .arg = "yes",
     .meaning = "allow an address other than loopback, although polyd does not authenticate clients: every "
                "client that reaches the address can submit jobs and read all results"},
    {ROW("server", "port", CONFIG_T_INT, server.port), INT(0, 65535, "7070"), .flag = "port", .arg = "N",
     .meaning = "port; 0 lets the kernel choose"},
    {ROW("server", "threads", CONFIG_T_INT, server.threads), INT(1, 64, "2"), .arg = "N",
     .meaning = "threads that answer HTTP"},
    {ROW("server", "readers", CONFIG_T_INT, server.readers), INT(2, 64, "4"), .arg = "N",
     .meaning =
         "threads that read the store and parse large bodies; half of them are reserved for short requests"},
    {ROW("server", "read_timeout_ms", CONFIG_T_INT, server.read_timeout_ms), INT(100, 600000, "5000"),
     .arg = "MS",
     .meaning =
         "time limit for a request to wait for such a thread (503), and for its reads of the store (504)"},
    {ROW("server", "max_body_bytes", CONFIG_T_INT, server.max_body_bytes), INT(65536, 4294967296, "67108864"),
     .arg = "BYTES",
     .meaning = "largest request body; a job document is limited to 262144 bytes in any case"},
    {ROW("server", "max_upload_bytes", CONFIG_T_INT, server.max_upload_bytes),
     INT(65536, 1099511627776, "8589934592"), .arg = "BYTES",
     .meaning = "largest upload of a file of weights"},
    {ROW("server", "max_connections", CONFIG_T_INT, server.max_connections), INT(8, 100000, "1024"),
     .arg = "N",
     .meaning = "open connections, streams included; a further one closes the connection that has been idle "
                "longest"},
    {ROW("server", "max_connections_per_address", CONFIG_T_INT, server.max_connections_per_address),
     INT(0, 100000, "0"), .arg = "N",
     .meaning = "open connections per client address; 0: only the limit above"},
    {ROW("server", "reserved_connections", CONFIG_T_INT, server.reserved_connections), INT(0, 1000, "16"),
     .arg = "N",
     .meaning =
         "connections beyond max_connections, for probes and /metrics only, if no other connection can be "
         "closed"},
    {ROW("server", "min_body_rate", CONFIG_T_INT, server.min_body_rate), INT(0, 1000000000, "1024"),
     .arg = "BYTES",
     .meaning =
         "bytes per second that a request body must deliver after its first 5 s; a slower connection is "
         "closed; 0: no limit"},
    {ROW("server", "allowed_hosts", CONFIG_T_LIST, server.allowed_hosts), .def = "", .arg = "NAMES",
     .meaning = "Host values to accept in addition to loopback names and the address above"},
    {ROW("server", "allowed_origins", CONFIG_T_LIST, server.allowed_origins), .def = "", .arg = "ORIGINS",
     .meaning = "Origin values (https://example.org) to accept for writes in addition to polyd's own"},
    {ROW("web", "dir", CONFIG_T_PATH, web.dir), .def_text = "the embedded files", .flag = "web-dir",
     .arg = "DIR", .meaning = "serve the dashboard from this folder"},
    {ROW("state", "dir", CONFIG_T_PATH, state.dir),
     .def_text = "as a service /var/lib/polyd, otherwise $XDG_STATE_HOME/polyd or ~/.local/state/polyd",
     .flag = "state-dir", .arg = "DIR", .meaning = "database, checkpoints, logs and the workers' socket"},
    {ROW("devices", "cpu_slots", CONFIG_T_INT, devices.cpu_slots), INT(1, CONFIG_CPU_SLOTS_MAX, "1"),
     .arg = "N", .meaning = "runs on the CPU at the same time"},
    {ROW("devices", "threads_per_slot", CONFIG_T_INT, devices.threads_per_slot), INT(0, 256, "0"), .arg = "N",
     .meaning = "CPU threads per slot; 0 divides the cores among the slots"},
    {ROW("devices", "gpus", CONFIG_T_LIST, devices.gpus), .def = "auto", .arg = "LIST",
     .meaning = "NVIDIA GPUs offered to jobs: auto (those of CUDA_VISIBLE_DEVICES, else all), all, none, or "
                "a list of "
                "indices and UUIDs"},
    {ROW("devices", "nvml", CONFIG_T_PATH, devices.nvml),
     .def_text = "libnvidia-ml.so.1, where the driver installed it", .arg = "FILE",
     .meaning = "the driver's management library"},
    {ROW("devices", "gpu_sample_ms", CONFIG_T_INT, devices.gpu_sample_ms), INT(50, 60000, "2000"),
     .arg = "MS", .meaning = "time between two samples of the GPUs"},
    {ROW("log", "level", CONFIG_T_CHOICE, log.level), .def = "info", .choices = level_choices,
     .values = level_values, .flag = "log-level", .arg = "LEVEL", .meaning = "error, warning, info or debug"},
    {ROW("worker", "path", CONFIG_T_PATH, worker.path),
     .def_text = "in the folder of polyd, else in its libexec folder", .arg = "FILE",
     .meaning = "the polyd-worker program"},
    {ROW("worker", "grace_s", CONFIG_T_INT, worker.grace_s), INT(1, 3600, "30"), .arg = "SECONDS",
     .meaning = "time that a worker has to write a checkpoint and exit before it is killed"},
    {ROW("runs", "silence_s", CONFIG_T_INT, runs.silence_s), INT(1, 31536000, "600"), .arg = "SECONDS",
     .meaning = "time without a message after which a run opened by POST /api/v1/runs becomes lost"},
    {ROW("cache", "max_bytes", CONFIG_T_INT, cache.max_bytes), INT(0, 1099511627776, "17179869184"),
     .arg = "BYTES",
     .meaning = "size limit of decoded images and tokens in the folder cache of the state folder; the least "
                "recently used are removed first"},
    {ROW("limits", "submissions", CONFIG_T_INT, limits.submissions), INT(1, 100000, "256"), .arg = "N",
     .meaning = "submissions and commands that may wait for the store; further ones are answered 503"},
    {ROW("limits", "updates", CONFIG_T_INT, limits.updates), INT(1, 100000, "1024"), .arg = "N",
     .meaning = "reports of workers that may wait for the store"},
    {ROW("limits", "metrics", CONFIG_T_INT, limits.metrics), INT(1, 100000, "1024"), .arg = "N",
     .meaning = "batches of metric points that may wait for the store"},
    {ROW("limits", "jobs", CONFIG_T_INT, limits.jobs), INT(1, 10000000, "100000"), .arg = "N",
     .meaning = "jobs that have not ended; further ones are answered 429"},
    {ROW("limits", "sse_clients", CONFIG_T_INT, limits.sse_clients), INT(1, 10000, "256"), .arg = "N",
     .meaning = "open event streams"},
    {ROW("store", "checkpoint", CONFIG_T_CHOICE, store.checkpoint_external), .def = "internal",
     .choices = checkpoint_choices, .values = checkpoint_values, .known_only = 1, .arg = "WHO",
     .meaning = "process that checkpoints the write-ahead log: internal, or external for a replication tool"},
    {ROW("keep", "best", CONFIG_T_INT, keep.best), INT(0, 100, "1"), .arg = "N",
     .meaning = "number of best checkpoints retained for a run whose document does not set train.keep.best"},
    {ROW("keep", "latest", CONFIG_T_INT, keep.latest), INT(0, 100, "1"), .arg = "N",
     .meaning =
         "number of latest checkpoints retained for a run whose document does not set train.keep.latest"},
    {ROW("serve", "queue", CONFIG_T_INT, serve.queue), INT(1, 100000, "64"), .arg = "N",
     .meaning = "inference requests that may wait for one model; further ones are answered 429"},
    {ROW("serve", "timeout_ms", CONFIG_T_INT, serve.timeout_ms), INT(1, 86400000, "60000"), .arg = "MS",
     .meaning = "deadline of inference requests without one; of a completion: until its first token, and "
                "then between tokens"},
    {ROW("serve", "device", CONFIG_T_CHOICE, serve.device), .def = "cpu", .choices = serve_device_choices,
     .values = serve_device_values, .arg = "WHERE",
     .meaning = "device of models loaded after the start: cpu, or cuda (in bf16, on a GPU that serves "
                "already, else on a free one, else on one that trains)"},
    {ROW("serve", "weights", CONFIG_T_CHOICE, serve.weights), .def = "f32", .choices = weights_choices,
     .values = weights_values, .arg = "TYPE",
     .meaning = "type of a language model's matrices, for models loaded after the start: f32, or bf16 for "
                "half the memory and faster decoding"},
    {ROW("serve", "decode", CONFIG_T_CHOICE, serve.decode), .def = "auto", .choices = decode_choices,
     .values = decode_values, .arg = "HOW",
     .meaning = "stored context of a completion: cache (keys and values), state (constant size, only for "
                "attention with x and x^2), or auto (the smaller one)"},
    {ROW("serve", "memory_bytes", CONFIG_T_INT, serve.memory_bytes), INT(0, 1099511627776, "0"),
     .arg = "BYTES",
     .meaning = "memory limit of all loaded models together; a version that does not fit is not loaded; 0: "
                "no limit"},
    {ROW("serve", "batch_delay_us", CONFIG_T_INT, serve.batch_delay_us), INT(0, 1000000, "0"), .arg = "US",
     .meaning = "time that an image waits for others to form a batch while the model is idle; 0: no waiting"},
};
const size_t config_row_count = sizeof config_rows / sizeof *config_rows;
