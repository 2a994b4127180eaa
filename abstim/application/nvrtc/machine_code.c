// In front of NVRTC, which makes PTX beside the machine code that it is asked for: a program that wants the machine code
// gets the PTX. Every call that loads an image takes that as well.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

enum { INTERNAL_ERROR = 11 };  // NVRTC's

static int next(const char *function, void *program, void *result) {
    int (*own)(void *, void *) = (int (*)(void *, void *))dlsym(RTLD_NEXT, function);
    return own ? own(program, result) : INTERNAL_ERROR;
}

int nvrtcGetCUBIN(void *program, char *image) { return next("nvrtcGetPTX", program, image); }
int nvrtcGetCUBINSize(void *program, size_t *bytes) { return next("nvrtcGetPTXSize", program, bytes); }
