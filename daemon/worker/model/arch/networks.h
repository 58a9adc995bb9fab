/* The networks of this build: one word each, for the file of that name in this folder. */
#pragma once

#define MODEL_NETWORKS(X) X(vit) X(deit) X(swin) X(gpt) X(xcit) X(pinnsformer) X(nystrom)
