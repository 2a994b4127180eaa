/* A CUDA driver that runs nothing: it writes down what it is asked, and says that kernels take as long as their rounds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double elapsed_ms;
static FILE *record(void) { static FILE *f; if (!f) f = fopen(getenv("FAKE_LIBCUDA_RECORD"), "w"); return f; }
#define NOTE(...) (fprintf(record(), __VA_ARGS__), fflush(record()), 0)

int cuInit(unsigned flags) { return NOTE("cuInit %u\n", flags); }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "Fake GPU %d", device); return 0; }
int cuDeviceGetAttribute(int *value, int number, int device) {
    (void)device;
    switch (number) {
    case 13: *value = 1500000; break;
    case 16: *value = 4; break;
    case 38: *value = 1 << 20; break;
    case 39: *value = 2048; break;
    case 75: *value = 8; break;
    case 76: *value = 0; break;
    case 81: *value = 167936; break;
    case 97: *value = 166912; break;
    default: return 1;
    }
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = "context"; return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuModuleLoadData(void **module, const char *ptx) {
    *module = strdup("module");
    return strstr(ptx, ".version") ? NOTE("cuModuleLoadData %d\n", strstr(ptx, "entry ticks(") != NULL) : 218;
}
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)module; *function = strdup(name); return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) {
    return NOTE("cuFuncSetAttribute %s %d %d\n", (char *)function, attribute, value);
}
int cuMemAlloc_v2(uint64_t *address, size_t size) { *address = (uint64_t)malloc(size); return NOTE("cuMemAlloc %zu\n", size); }
int cuMemFree_v2(uint64_t address) { free((void *)address); return NOTE("cuMemFree\n"); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t size) { memset((void *)to, value, size); return 0; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    const char *name = function;
    char *buffer = extra[1]; /* CU_LAUNCH_PARAM_BUFFER_POINTER comes first */
    double cycles = 1000;
    (void)stream, (void)parameters;
    if (!strcmp(name, "ticks")) { /* 16 operations of 4 cycles a round; the clock is 1 GHz */
        cycles += 64.0 * *(unsigned *)(buffer + 8);
        **(uint64_t **)buffer = (uint64_t)cycles;
    } else if (!strncmp(name, "chase_", 6)) { /* 8 loads of 20 cycles a round */
        cycles += 160.0 * *(unsigned *)(buffer + 16);
    }
    elapsed_ms += cycles / 1e6;
    return NOTE("cuLaunchKernel %s %u %u %u %u %u %u %u\n", name, gx, gy, gz, bx, by, bz, shared);
}
int cuEventDestroy_v2(void *event) { free(event); return 0; }
int cuGetErrorString(int status, const char **text) { *text = status == 1 ? "invalid argument" : "unknown"; return 0; }
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = malloc(sizeof(double)); return 0; }
int cuEventRecord(void *event, void *stream) { (void)stream; *(double *)event = elapsed_ms; return 0; }
int cuEventSynchronize(void *event) { (void)event; return 0; }
int cuEventElapsedTime(float *ms, void *a, void *b) { *ms = (float)(*(double *)b - *(double *)a); return 0; }
int cuCtxSynchronize(void) { return 0; }
