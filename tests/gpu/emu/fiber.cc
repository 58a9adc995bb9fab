#include "tests/gpu/emu/fiber.h"

#include <cstdio>
#include <cstdlib>

#include <sys/mman.h>

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define STACK ((size_t)1 << 20)
#else
#define STACK ((size_t)256 << 10)
#endif
#if !defined __x86_64__
#include <ucontext.h>
#endif

struct pk_fiber {
    void *sp;
    void (*main)(void *);
    const void *bottom;
    size_t size;
#if !defined __x86_64__
    ucontext_t context;
#endif
};

#if defined __x86_64__
/* Saves what a function must keep, changes the stack, and returns into the other one. */
extern "C" void pk_emu_switch_stack(void **save, void *to);
asm(".text\n"
    ".hidden pk_emu_switch_stack\n"
    ".globl pk_emu_switch_stack\n"
    ".type pk_emu_switch_stack, @function\n"
    "pk_emu_switch_stack:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size pk_emu_switch_stack, .-pk_emu_switch_stack\n");
#endif

#if defined __SANITIZE_ADDRESS__
static const void *home_bottom;
static size_t home_size;
static pk_fiber *leaving;
#endif

static pk_fiber *starting;

static void begin()
{
    starting->main(nullptr);
    abort();
}

pk_fiber *pk_fiber_home()
{
    return new pk_fiber();
}

pk_fiber *pk_fiber_new(void (*main)(void *))
{
    pk_fiber *f = new pk_fiber();
    char *stack = (char *)mmap(nullptr, STACK + 4096, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (stack == MAP_FAILED) {
        fprintf(stderr, "cuda emulation: no memory for a stack\n");
        abort();
    }
    mprotect(stack, 4096, PROT_NONE);
    f->main = main;
    f->bottom = stack + 4096;
    f->size = STACK;
#if defined __x86_64__
    void **top = (void **)(stack + 4096 + STACK);

    *--top = nullptr; /* alignment: begin() is entered as if called, with a return address on the stack */
    *--top = (void *)begin;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack + 4096;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, begin, 0);
#endif
    return f;
}

void pk_fiber_switch(pk_fiber *from, pk_fiber *to)
{
    starting = to;
#if defined __SANITIZE_ADDRESS__
    void *fake = nullptr;

    leaving = from;
    __sanitizer_start_switch_fiber(&fake, to->bottom ? to->bottom : home_bottom,
                                   to->bottom ? to->size : home_size);
#endif
#if defined __x86_64__
    pk_emu_switch_stack(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
#if defined __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;

    __sanitizer_finish_switch_fiber(fake, &bottom, &size);
    if (leaving && !leaving->bottom) {
        home_bottom = bottom;
        home_size = size;
    }
#endif
}

void pk_fiber_entered()
{
#if defined __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;

    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (leaving && !leaving->bottom) {
        home_bottom = bottom;
        home_size = size;
    }
#endif
}
