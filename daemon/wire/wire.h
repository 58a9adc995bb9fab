/* daemon/wire/wire.h: the frames between polyd and polyd-worker, over a Unix socket or TCP.
 *
 * A frame is a 24-byte little-endian header (magic PDWK, version, flags, type, payload bytes, CRC-32C of
 * the payload, seq) and a payload of fields (u16 tag, u16 zero, u32 length, bytes). Unknown tags are
 * skipped, so a new field needs no new version. Nothing here does I/O except the two socket helpers at the
 * end; nothing here locks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/buf.h"

#define WIRE_VERSION 1 /* protocol version; a daemon also supports the two previous ones */
#define WIRE_VERSION_MIN 1
#define WIRE_HEADER_BYTES 24
#define WIRE_PAYLOAD_MAX (16u << 20)
#define WIRE_POINTS_MAX 1000u      /* maximum points in one metrics frame */
#define WIRE_INLINE_MAX (1u << 20) /* larger tensors travel as a sealed memfd */
#define WIRE_TOKEN_BYTES 32        /* 256 bits */
#define WIRE_RANK_MAX 8            /* dimensions of a tensor on the wire */
#define WIRE_TENSORS_MAX 64
#define WIRE_NAME_MAX 255         /* bytes of a metric key or tensor name */
#define WIRE_PHASE_MAX 159        /* bytes of a phase */
#define WIRE_TUNED_KEY 1023       /* bytes of a measured choice's key */
#define WIRE_TUNED_VALUE 256      /* of its value */
#define WIRE_TUNED_MAX 1000u      /* such records in one frame */
#define WIRE_HEARTBEAT_US 2000000 /* both sides send one this often */
#define WIRE_SILENCE_US 10000000  /* silence that closes the connection */
#define WIRE_HANG_US 60000000     /* silence of a live process that counts as a hang */

#define WIRE_PLAN_FULL 4    /* exit status of `polyd-worker weights`: no space on the device */
#define WIRE_PLAN_INVALID 3 /* exit status of `polyd-worker plan`: an error in the document or its data */

#define WIRE_FLAG_FD 1u /* the frame carries a descriptor (SCM_RIGHTS) */

enum wire_type {
    WIRE_HELLO = 1,
    WIRE_WELCOME = 2,
    WIRE_ASSIGN = 3,
    WIRE_PROGRESS = 4,
    WIRE_METRICS = 5,
    WIRE_ACK = 6,
    WIRE_LOG_OFFSET = 7,
    WIRE_CHECKPOINT_WRITTEN = 8,
    WIRE_EVENT = 9,
    WIRE_BLOB = 10,
    WIRE_CANCEL = 11,
    WIRE_CHECKPOINT_NOW = 12,
    WIRE_DRAIN = 13,
    WIRE_INFER = 14,
    WIRE_INFER_RESULT = 15,
    WIRE_UNLOAD = 16,
    WIRE_HEARTBEAT = 17,
    WIRE_BYE = 18,
    WIRE_READY = 19, /* serve worker: warm, with its signature */
    /* Gangs: rendezvous of the ranks of an attempt. Rank 0 creates an id and sends it, again after every
     * welcome; polyd stores it for the attempt's life and forwards it to every other rank, current or later.
     * Its contents are opaque to polyd (kernels/comm/comm.h). */
    WIRE_RENDEZVOUS = 20,
    /* Measured choices of a back end: any worker asks for those of its device once
     * the back end is open, and receives all of them; it sends new measurements immediately, and everything
     * again after a reconnection: a record that is there is kept. */
    WIRE_TUNED_ASK = 21, /* w */
    WIRE_TUNED = 22,     /* both: at most WIRE_TUNED_MAX records; d: the last frame is flagged */
    WIRE_TYPE_COUNT
};

/* Field tags, common to all frame types, which makes dumps readable; each comment lists the types that use
 * it. */
enum wire_tag {
    WIRE_TAG_VERSION_MIN = 1, /* u32; hello */
    WIRE_TAG_VERSION_MAX = 2, /* u32; hello; welcome: the version chosen */
    WIRE_TAG_RUN = 3,         /* u64; hello; for a serve worker 0 */
    WIRE_TAG_ATTEMPT = 4,     /* u32; hello; cancel */
    WIRE_TAG_RANK = 5,        /* u32, absent = 0; hello, assign */
    WIRE_TAG_TOKEN = 6,       /* 32 bytes; hello */
    WIRE_TAG_PID = 7,         /* u32; hello */
    WIRE_TAG_PID_START = 8,   /* u64, clock ticks since boot (field 22 of /proc/PID/stat); hello */
    WIRE_TAG_BUILD = 9,       /* text; hello */
    WIRE_TAG_LOWEST_SEQ = 10, /* u64, lowest seq still held, 0 = none; hello */
    WIRE_TAG_ACKED = 11,      /* u64; welcome, ack */
    WIRE_TAG_ROLE = 12,       /* text: train, serve, selftest; assign */
    WIRE_TAG_JOB = 13,        /* the resolved job document, JSON; assign */
    WIRE_TAG_DEVICE = 14,     /* text such as "cpu:0": the rank's; assign */
    WIRE_TAG_THREADS = 15,    /* u32, CPU threads for this rank; assign */
    WIRE_TAG_RUN_DIR = 16,    /* text: run directory (checkpoints below it); assign */
    WIRE_TAG_CHECKPOINT =
        17, /* text: start checkpoint path, absent = from scratch; assign, checkpoint_written */
    WIRE_TAG_DATA_ROOT = 18, /* text "name=path"; repeated; assign */
    WIRE_TAG_PLAN = 19,      /* JSON; assign */
    WIRE_TAG_STEP = 20,  /* u64; progress, checkpoint_written, bye; assign: step of the start checkpoint */
    WIRE_TAG_TOTAL = 21, /* u64; progress */
    WIRE_TAG_STATE = 22, /* text: running, checkpointing; progress */
    WIRE_TAG_KEY = 23, /* text: metrics: defines the next key index (see wire_points); event kind; blob key */
    WIRE_TAG_POINTS = 24,   /* packed points of 28 bytes: u32 key index, i64 step, i64 time us, f64 value */
    WIRE_TAG_BYTES = 25,    /* u64; log_offset, checkpoint_written */
    WIRE_TAG_DIGEST = 26,   /* text, SHA-256 in hex; checkpoint_written, blob; assign: of each CHECKPOINT */
    WIRE_TAG_TEXT = 27,     /* text; event, bye, infer_result (error sentence) */
    WIRE_TAG_PAIR = 28,     /* text "key=value"; repeated; event */
    WIRE_TAG_GRACE_US = 29, /* u64; cancel, drain */
    WIRE_TAG_REQUEST = 30,  /* u64: cancel of one request; 0 or absent = the attempt */
    WIRE_TAG_DEADLINE_US = 31, /* u64, us left when sent; infer */
    WIRE_TAG_JSON = 32,        /* parameters or result members, JSON; infer, infer_result, ready */
    WIRE_TAG_TENSOR = 33,      /* one tensor, see wire_put_tensor; repeated; infer, infer_result, blob */
    WIRE_TAG_LAST = 34,        /* u32 1: the stream of results ends here; infer_result */
    WIRE_TAG_ERROR = 35,       /* u32 enum pd_err; infer_result */
    WIRE_TAG_CAUSE =
        36, /* text: done, diverged, failed, invalid, outdated, limit, checkpointed, refused, version; bye */
    WIRE_TAG_MODEL = 37, /* text "name/version"; assign (serve), unload */
    WIRE_TAG_KIND = 38,  /* text; infer: infer, complete; blob: histogram, matrix, image; checkpoint_written:
                            latest, best, final */
    WIRE_TAG_VALUE = 39, /* f64; checkpoint_written: the validation value that ranked it, absent = none */
    WIRE_TAG_TIME_US = 40,  /* i64 wall clock; event, blob, checkpoint_written */
    WIRE_TAG_RESTARTS = 41, /* u32; assign: earlier attempts */
    WIRE_TAG_SEQ_BASE = 42, /* u64; welcome: resend from here + 1 (same as acked; for tools) */
    WIRE_TAG_TIMING = 43,   /* struct wire_timing; infer_result, the last one */
    WIRE_TAG_MEMORY = 44,   /* u64: maximum memory of the model; ready */
    WIRE_TAG_RANKS = 45,    /* u32, processes of the attempt, absent = 1; assign (with rank) */
    WIRE_TAG_COMM_ID = 46,  /* at most 256 bytes; rendezvous */
    WIRE_TAG_GPU = 47,      /* text: name of the device model, "NVIDIA H200"; tuned_ask, tuned */
    WIRE_TAG_DRIVER = 48,   /* text; likewise */
    WIRE_TAG_LIBRARY = 49,  /* text; likewise */
    WIRE_TAG_RECORD = 50,   /* bytes: the value of the KEY before it; tuned */
    WIRE_TAG_STORE = 51,    /* text: identity of the database; assign (train) */
    WIRE_TAG_PHASE = 52 /* text for display: what the worker does between steps, absent = nothing; progress */
};

/* Timing of a request in its worker: u64 each, in this order. Later fields may follow. */
struct wire_timing {
    uint64_t queue_us;   /* from arrival to the start of its computation */
    uint64_t compute_us; /* from there to its answer */
    uint64_t batch;      /* images computed together; completions: sequences of a step, on average */
    uint64_t tokens;     /* completions: tokens made */
    uint64_t first_us;   /* completions: from arrival to the first token; 0 = no token */
    uint64_t span_us;    /* completions: from the first token to the last */
};

/* ---- header ---------------------------------------------------------------------------------- */

struct wire_header {
    uint8_t version;
    uint8_t flags;
    uint16_t type;
    uint32_t len; /* payload bytes */
    uint32_t crc;
    uint64_t seq;
};

/* Parses and checks 24 bytes: magic, length limit. PD_ERR_CORRUPT, PD_ERR_LIMIT. */
PD_NODISCARD enum pd_err wire_header_parse(const uint8_t bytes[WIRE_HEADER_BYTES], struct wire_header *ret,
                                           struct pd_why *why);

/* A name such as "hello" for the log; "unknown" outside the enum. Static. */
const char *wire_type_name(unsigned type);

/* ---- writing --------------------------------------------------------------------------------- */

/* Begins a frame at the end of `b` (several frames may be built one after the other in one
 * buffer) and returns its offset for wire_end. */
size_t wire_begin(struct pd_buf *b, enum wire_type type, unsigned flags, uint64_t seq);
void wire_put_bytes(struct pd_buf *b, enum wire_tag tag, const void *bytes, size_t len);
void wire_put_text(struct pd_buf *b, enum wire_tag tag, const char *text);
void wire_put_u32(struct pd_buf *b, enum wire_tag tag, uint32_t value);
void wire_put_u64(struct pd_buf *b, enum wire_tag tag, uint64_t value);
void wire_put_f64(struct pd_buf *b, enum wire_tag tag, double value);
void wire_put_timing(struct pd_buf *b, const struct wire_timing *t);
/* Fills in length and CRC. PD_ERR_LIMIT above 16 MiB of payload, or if out of memory; the frame is then
 * removed from the buffer. */
PD_NODISCARD enum pd_err wire_end(struct pd_buf *b, size_t begin);

/* Changes the version byte of a finished frame at `frame` (hello and welcome keep 0). */
void wire_set_version(uint8_t *frame, unsigned version);

/* ---- reading --------------------------------------------------------------------------------- */

struct wire_field {
    uint16_t tag;
    uint32_t len;
    const uint8_t *bytes; /* borrowed from the payload; not aligned, not terminated */
};

/* Walks the fields: set *pos to 0 first. False at the end or if the rest is malformed; *ret_bad (may be NULL)
 * distinguishes the two. */
bool wire_next(const uint8_t *payload, size_t len, size_t *pos, struct wire_field *ret, bool *ret_bad);

/* Whether the whole payload is well-formed. */
bool wire_valid(const uint8_t *payload, size_t len);

/* First field with the tag; false if there is none. */
bool wire_find(const uint8_t *payload, size_t len, enum wire_tag tag, struct wire_field *ret);

/* First field with the tag as a value; `missing` if absent or of a wrong length. */
uint32_t wire_get_u32(const uint8_t *payload, size_t len, enum wire_tag tag, uint32_t missing);
uint64_t wire_get_u64(const uint8_t *payload, size_t len, enum wire_tag tag, uint64_t missing);
double wire_get_f64(const uint8_t *payload, size_t len, enum wire_tag tag, double missing);

/* Copies the first field with the tag as text. False (out = "") if absent, longer than size - 1, or with
 * a NUL inside. */
/* False if there is none. */
bool wire_get_timing(const uint8_t *payload, size_t len, struct wire_timing *ret);
bool wire_get_text(const uint8_t *payload, size_t len, enum wire_tag tag, char *out, size_t size);

/* ---- metrics --------------------------------------------------------------------------------- */

struct wire_point {
    uint32_t key; /* index of the KEY field in the same frame, from 0 */
    int64_t step;
    int64_t time_us; /* wall clock */
    double value;
};
#define WIRE_POINT_BYTES 28

void wire_put_points(struct pd_buf *b, const struct wire_point *points, size_t count);
/* Point `i` of a POINTS field; the caller checked that len is count x WIRE_POINT_BYTES. */
struct wire_point wire_point_at(const struct wire_field *points, size_t i);

/* ---- measured choices ------------------------------------------------------------------------ */

/* Appends one record: KEY, RECORD. */
void wire_put_tuned(struct pd_buf *b, const char *key, const void *value, size_t size);
/* Walks the records of a payload, as wire_next does its fields. Records beyond the limits are skipped and
 * counted in *bad. `key` holds WIRE_TUNED_KEY + 1 bytes; the value is borrowed from the payload. */
bool wire_next_tuned(const uint8_t *payload, size_t len, size_t *pos, char *key, const uint8_t **ret_value,
                     size_t *ret_size, int *bad);

/* ---- tensors --------------------------------------------------------------------------------- */

/* Names of datatypes are those of the Open Inference Protocol: FP32, INT64, BYTES, ... */
struct wire_tensor {
    char name[WIRE_NAME_MAX + 1];
    char dtype[8];
    uint32_t rank;
    int64_t shape[WIRE_RANK_MAX];
    const void *data; /* borrowed; little-endian, row-major */
    size_t bytes;
};

/* Appends one tensor inline. */
void wire_put_tensor(struct pd_buf *b, const struct wire_tensor *t);
/* Reads a TENSOR field; `data` points into the payload. */
PD_NODISCARD enum pd_err wire_get_tensor(const struct wire_field *f, struct wire_tensor *ret,
                                         struct pd_why *why);

/* ---- a stream of frames ---------------------------------------------------------------------- */

/* Collects bytes from a socket into whole frames. */
struct wire_in {
    struct pd_buf buf;
    size_t pos; /* start of the next frame in buf */
};

void wire_in_init(struct wire_in *in);
void wire_in_done(struct wire_in *in);

/* Reads the available bytes of the non-blocking socket, at most `most`. PD_OK also if there are none;
 * PD_ERR_CLOSED at the end of the stream; PD_ERR_IO. A received descriptor is closed (none of version 1's
 * frames carries one). */
PD_NODISCARD enum pd_err wire_in_read(struct wire_in *in, int fd, size_t most, struct pd_why *why);

/* The next whole frame: PD_OK with header and payload (borrowed until the next wire_in_ call),
 * PD_ERR_NOT_FOUND if more bytes are needed, PD_ERR_CORRUPT or PD_ERR_LIMIT if the stream is invalid (close
 * it). CRC and fields are validated. */
PD_NODISCARD enum pd_err wire_in_next(struct wire_in *in, struct wire_header *ret_head,
                                      const uint8_t **ret_payload, struct pd_why *why);

/* Sends bytes from the front of `b` without blocking. PD_OK also if only a part was sent; PD_ERR_CLOSED if
 * the peer is gone. */
PD_NODISCARD enum pd_err wire_out_write(struct pd_buf *b, int fd, struct pd_why *why);
