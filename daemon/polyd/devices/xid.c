/* The driver's error numbers, by what they mean for a run and for the GPU. The numbers and words are NVIDIA's
 * ("XID errors"); NVIDIA's device plug-in for Kubernetes defines
 * which ones are errors of the program. 63, 64, 94 and 95 concern GPUs that remap rows of their memory (A100
 * and later). */
#include "daemon/polyd/devices/device.h"

static const struct {
    int xid;
    enum device_xid what;
    const char *text;
} xids[] = {
    {13, DEVICE_XID_PROGRAM, "graphics engine exception"},
    {31, DEVICE_XID_PROGRAM, "GPU memory page fault"},
    {43, DEVICE_XID_PROGRAM, "GPU stopped processing"},
    {45, DEVICE_XID_PROGRAM, "preemptive cleanup after earlier errors"},
    {48, DEVICE_XID_FATAL, "double-bit ECC error"},
    {63, DEVICE_XID_HARDWARE, "a row of its memory was remapped, it wants a reset"},
    {64, DEVICE_XID_FATAL, "a row of its memory could not be remapped"},
    {68, DEVICE_XID_PROGRAM, "video processor exception"},
    {74, DEVICE_XID_FATAL, "NVLink error"},
    {79, DEVICE_XID_FATAL, "GPU has fallen off the bus"},
    {94, DEVICE_XID_FATAL, "contained memory error"},
    {95, DEVICE_XID_FATAL, "uncontained memory error"},
    {109, DEVICE_XID_PROGRAM, "context switch timed out"},
};

enum device_xid device_xid_class(int xid)
{
    for (size_t i = 0; i < sizeof xids / sizeof *xids; i++)
        if (xids[i].xid == xid)
            return xids[i].what;
    return DEVICE_XID_NOTE;
}

const char *device_xid_text(int xid)
{
    for (size_t i = 0; i < sizeof xids / sizeof *xids; i++)
        if (xids[i].xid == xid)
            return xids[i].text;
    return "";
}
