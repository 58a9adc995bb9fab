/* The gallery for test_formula_text.cc: gallery.h has complex numbers of C. */
#include "tests/formula/gallery.h"

const char *gallery_text(int m);
int gallery_count(void);

const char *gallery_text(int m)
{
    return gallery[m].text;
}

int gallery_count(void)
{
    return GALLERY;
}
