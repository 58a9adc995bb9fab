/* tests/gpu/emu/fiber.h: stacks that one host thread switches between. */
#pragma once

struct pk_fiber;

/* The stack that is running now, as a fiber to come back to. */
pk_fiber *pk_fiber_home();
/* A stack of its own, with a page that faults below it; main(NULL) begins at the first switch and never
 * returns. Never freed: the pool lives as long as the process. */
pk_fiber *pk_fiber_new(void (*main)(void *));
void pk_fiber_switch(pk_fiber *from, pk_fiber *to);
/* First thing in main. */
void pk_fiber_entered();
