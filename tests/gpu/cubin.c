/* A cubin is an ELF file of 64 bits. Section .nv.info lists attributes of the symbols:
 *
 *     u8 form, u8 attribute, u16 bytes, then (form 4) that many bytes: for those read here u32 symbol, u32 value
 *
 * Kernels are global functions; other functions are called by them and have entries as well. */
#include "tests/gpu/cubin.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZED = 4, FRAME_SIZE = 0x11, REGISTERS = 0x2f }; /* EIFMT_SVAL; EIATTR_FRAME_SIZE, EIATTR_REGCOUNT */

struct image {
    const unsigned char *bytes;
    size_t size;
    Elf64_Ehdr head;
};

static bool section(const struct image *x, unsigned i, Elf64_Shdr *ret)
{
    const size_t at = x->head.e_shoff + (size_t)i * sizeof *ret;

    if (i >= x->head.e_shnum || at + sizeof *ret > x->size)
        return false;
    memcpy(ret, x->bytes + at, sizeof *ret);
    return ret->sh_type == SHT_NOBITS ||
           (ret->sh_offset <= x->size && ret->sh_size <= x->size - ret->sh_offset);
}

/* A text of a table of strings, "" if there is none. */
static const char *text(const struct image *x, const Elf64_Shdr *strings, uint32_t at)
{
    const char *from = (const char *)x->bytes + strings->sh_offset;

    return at < strings->sh_size && memchr(from + at, '\0', strings->sh_size - at) ? from + at : "";
}

static bool find(const struct image *x, const char *name, Elf64_Shdr *ret)
{
    Elf64_Shdr names;

    if (!section(x, x->head.e_shstrndx, &names))
        return false;
    for (unsigned i = 0; i < x->head.e_shnum; i++)
        if (section(x, i, ret) && !strcmp(text(x, &names, ret->sh_name), name))
            return true;
    return false;
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct cubin_kernel *)a)->name, ((const struct cubin_kernel *)b)->name);
}

/* The kernel of symbol `index`, added if it is new; NULL: it is no kernel. */
static struct cubin_kernel *kernel(const struct image *x, const Elf64_Shdr *symbols, uint32_t index,
                                   struct cubin_kernel *list, int *n, int most)
{
    Elf64_Shdr strings;
    Elf64_Sym s;
    const char *name;

    if ((index + 1) * sizeof s > symbols->sh_size || !section(x, symbols->sh_link, &strings))
        return NULL;
    memcpy(&s, x->bytes + symbols->sh_offset + index * sizeof s, sizeof s);
    if (ELF64_ST_TYPE(s.st_info) != STT_FUNC || ELF64_ST_BIND(s.st_info) != STB_GLOBAL)
        return NULL;
    name = text(x, &strings, s.st_name);
    for (int k = 0; k < *n; k++)
        if (!strcmp(list[k].name, name))
            return &list[k];
    if (*n == most)
        return NULL;
    list[*n] = (struct cubin_kernel){.registers = -1, .stack_bytes = -1};
    snprintf(list[*n].name, sizeof list[*n].name, "%s", name);
    return &list[(*n)++];
}

int cubin_kernels(const void *bytes, size_t size, struct cubin_kernel *ret, int most)
{
    struct image x = {.bytes = bytes, .size = size};
    Elf64_Shdr info, symbols;
    int n = 0;

    if (size < sizeof x.head || memcmp(bytes, ELFMAG, SELFMAG) != 0)
        return -1;
    memcpy(&x.head, bytes, sizeof x.head);
    if (!find(&x, ".symtab", &symbols) || !find(&x, ".nv.info", &info))
        return -1;
    for (size_t at = 0; at + 4 <= info.sh_size;) {
        const unsigned char *entry = x.bytes + info.sh_offset + at;
        uint16_t len = 0;
        uint32_t pair[2];

        if (entry[0] == SIZED)
            memcpy(&len, entry + 2, sizeof len);
        at += 4 + (size_t)len;
        if (at <= info.sh_size && len == sizeof pair && (entry[1] == FRAME_SIZE || entry[1] == REGISTERS)) {
            struct cubin_kernel *k;

            memcpy(pair, entry + 4, sizeof pair);
            k = kernel(&x, &symbols, pair[0], ret, &n, most);
            if (k && entry[1] == FRAME_SIZE)
                k->stack_bytes = (int)pair[1];
            else if (k)
                k->registers = (int)(pair[1] & 0xffff);
        }
    }
    for (int k = 0; k < n; k++)
        if (ret[k].registers < 0 || ret[k].stack_bytes < 0)
            return -1;
    qsort(ret, (size_t)n, sizeof *ret, compare);
    return n ? n : -1;
}
