/* daemon/job/gallery.h: published attention activations as formulas (attention.formula), to start from. */
#pragma once

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

/* Appends {"formulas":[{"name","formula","params","source","text","causal"}]}: params as attention.params takes them,
 * text one sentence, causal where the formula is made for texts. PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err job_gallery_json(struct pd_buf *ret_json, struct pd_why *why);
