// The driver API's modules, what links them, and what is asked of their kernels.
#include "public_calls.h"

typedef struct Module { uint64_t id; } Module;

// What cuLinkComplete gives in place of machine code: the PTX that was added, text after text
typedef struct { uint32_t magic, count; uint64_t bytes; } Linked;
enum { LINKED = 0x4B4E4C41 };

static Error load_linked(const Linked *linked, uint64_t *module) {
    const uint8_t *at = (const uint8_t *)(linked + 1);
    for (uint32_t k = 0; k < linked->count; k++) {
        uint64_t bytes, part;
        memcpy(&bytes, at, sizeof bytes);
        Error error = send_module(1, at + sizeof bytes, bytes, &part);
        if (!error && k) {
            struct part_request request = {*module, part};
            struct part_reply reply;
            error = ASK(PART, request, reply);
        } else *module = part;
        if (error) return error;
        at += sizeof bytes + bytes;
    }
    return linked->count ? SUCCESS : INVALID_IMAGE;
}

PUBLIC Error cuModuleLoadData(Module **module, const void *image) {
    uint32_t magic;
    uint64_t id = 0;
    if (!image) return INVALID_VALUE;
    memcpy(&magic, image, sizeof magic);
    Error error = magic == LINKED ? load_linked(image, &id) : load_image(image, &id);
    struct parse_request request = {id};
    struct parse_reply reply;
    if (!error) error = ASK(PARSE, request, reply);  // a driver compiles here, and finds what is wrong
    if (error) return of_driver(error);
    *module = calloc(1, sizeof **module);
    (*module)->id = id;
    return SUCCESS;
}
PUBLIC Error cuModuleLoadDataEx(Module **module, const void *image, unsigned count, const int *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}
PUBLIC Error cuModuleLoadFatBinary(Module **module, const void *image) { return cuModuleLoadData(module, image); }

static char *contents(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = calloc(1, *bytes + 1);
    if (fread(data, 1, *bytes, file) != *bytes) *data = 0;
    fclose(file);
    return data;
}
PUBLIC Error cuModuleLoad(Module **module, const char *path) {
    size_t bytes;
    char *data = contents(path, &bytes);
    if (!data) return FILE_NOT_FOUND;
    Error error = cuModuleLoadData(module, data);
    free(data);
    return error;
}
PUBLIC Error cuModuleUnload(Module *module) { return module ? SUCCESS : INVALID_HANDLE; }
PUBLIC Error cuModuleGetLoadingMode(int *mode) { *mode = 2; return SUCCESS; }

PUBLIC Error cuModuleGetFunction(Kernel **function, Module *module, const char *name) {
    if (!module || !function || !name) return module ? INVALID_VALUE : INVALID_HANDLE;
    Kernel *kernel = add_kernel(module->id, NULL, name);
    Error error = resolve(kernel);
    *function = error ? NULL : kernel;
    return of_driver(error);
}
PUBLIC Error cuModuleGetGlobal_v2(uint64_t *pointer, size_t *bytes, Module *module, const char *name) {
    if (!module || !name) return module ? INVALID_VALUE : INVALID_HANDLE;
    struct variable_request request = {module->id};
    struct variable_reply reply = {0};
    Error error = ask(MESSAGE_VARIABLE, &request, sizeof request, name, strlen(name), &reply, sizeof reply);
    if (error) return of_driver(error);
    if (pointer) *pointer = reply.address;
    if (bytes) *bytes = reply.bytes;
    return SUCCESS;
}

// Libraries are modules, and their kernels functions
PUBLIC Error cuLibraryLoadData(Module **library, const void *image, int *a, void **b, unsigned c, int *d, void **e,
                               unsigned f) {
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return cuModuleLoadData(library, image);
}
PUBLIC Error cuLibraryLoadFromFile(Module **library, const char *path, int *a, void **b, unsigned c, int *d, void **e,
                                   unsigned f) {
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return cuModuleLoad(library, path);
}
PUBLIC Error cuLibraryUnload(Module *library) { return cuModuleUnload(library); }
PUBLIC Error cuLibraryGetModule(Module **module, Module *library) { *module = library; return SUCCESS; }
PUBLIC Error cuLibraryGetKernel(Kernel **kernel, Module *library, const char *name) {
    return cuModuleGetFunction(kernel, library, name);
}
PUBLIC Error cuLibraryGetGlobal(uint64_t *pointer, size_t *bytes, Module *library, const char *name) {
    return cuModuleGetGlobal_v2(pointer, bytes, library, name);
}
PUBLIC Error cuKernelGetFunction(Kernel **function, Kernel *kernel) { *function = kernel; return SUCCESS; }

// Linking keeps texts; they are linked where they are loaded
typedef struct { Linked *image; size_t bytes; } Link;
PUBLIC Error cuLinkCreate_v2(unsigned count, int *options, void **values, Link **link) {
    (void)count, (void)options, (void)values;
    *link = calloc(1, sizeof **link);
    (*link)->bytes = sizeof(Linked), (*link)->image = calloc(1, sizeof(Linked));
    (*link)->image->magic = LINKED;
    return SUCCESS;
}
enum { INPUT_PTX = 1, INPUT_FAT_BINARY = 2 };
PUBLIC Error cuLinkAddData_v2(Link *link, int kind, const void *data, size_t size, const char *name, unsigned count,
                              int *options, void **values) {
    (void)name, (void)count, (void)options, (void)values;
    if (!link || !data) return link ? INVALID_VALUE : INVALID_HANDLE;
    if (kind != INPUT_PTX) return of_driver(missing("cuLinkAddData of anything but PTX"));
    uint64_t bytes = strnlen(data, size);
    link->image = realloc(link->image, link->bytes + sizeof bytes + bytes);
    memcpy((uint8_t *)link->image + link->bytes, &bytes, sizeof bytes);
    memcpy((uint8_t *)link->image + link->bytes + sizeof bytes, data, bytes);
    link->bytes += sizeof bytes + bytes, link->image->count++;
    return SUCCESS;
}
PUBLIC Error cuLinkAddFile_v2(Link *link, int kind, const char *path, unsigned count, int *options, void **values) {
    size_t bytes;
    char *data = contents(path, &bytes);
    if (!data) return FILE_NOT_FOUND;
    Error error = cuLinkAddData_v2(link, kind, data, bytes, path, count, options, values);
    free(data);
    return error;
}
PUBLIC Error cuLinkComplete(Link *link, void **image, size_t *bytes) {
    link->image->bytes = link->bytes;
    *image = link->image;
    if (bytes) *bytes = link->bytes;
    return SUCCESS;
}
PUBLIC Error cuLinkDestroy(Link *link) {
    free(link->image);
    free(link);
    return SUCCESS;
}

// CUfunction_attribute
enum { F_THREADS, F_SHARED, F_CONST, F_LOCAL, F_REGISTERS, F_PTX, F_BINARY, F_CACHE_MODE, F_MOST_SHARED, F_CARVEOUT };
PUBLIC Error cuFuncGetAttribute(int *value, int attribute, Kernel *function) {
    struct attributes_reply reply = {0};
    Error error = function ? attributes_of(function, &reply) : INVALID_HANDLE;
    if (error) return of_driver(error);
    const int values[] = {
        (int)reply.max_threads, (int)reply.shared_bytes, (int)reply.const_bytes, (int)reply.local_bytes,
        (int)reply.registers, (int)reply.ptx_version, (int)reply.binary_version, 0,
        (int)reply.most_dynamic_shared_bytes, -1,
    };
    if (attribute < 0 || attribute > 15) return INVALID_VALUE;
    *value = attribute <= F_CARVEOUT ? values[attribute] : 0;  // those that follow are of clusters
    return SUCCESS;
}
PUBLIC Error cuFuncSetAttribute(Kernel *function, int attribute, int value) {
    return function ? of_driver(set_attribute(function, attribute, value)) : INVALID_HANDLE;
}
PUBLIC Error cuKernelGetAttribute(int *value, int attribute, Kernel *kernel, int device) {
    return device ? INVALID_DEVICE : cuFuncGetAttribute(value, attribute, kernel);
}
PUBLIC Error cuKernelSetAttribute(int attribute, int value, Kernel *kernel, int device) {
    return device ? INVALID_DEVICE : cuFuncSetAttribute(kernel, attribute, value);
}
PUBLIC Error cuFuncSetCacheConfig(Kernel *function, int preference) {
    (void)preference;
    return function ? SUCCESS : INVALID_HANDLE;
}
PUBLIC Error cuFuncSetSharedMemConfig(Kernel *function, int width) {
    (void)width;
    return function ? SUCCESS : INVALID_HANDLE;
}
PUBLIC Error cuFuncGetName(const char **name, Kernel *function) {
    if (!function) return INVALID_HANDLE;
    *name = function->name;
    return SUCCESS;
}
PUBLIC Error cuKernelGetName(const char **name, Kernel *kernel) { return cuFuncGetName(name, kernel); }
PUBLIC Error cuFuncGetParamInfo(Kernel *function, size_t number, size_t *offset, size_t *bytes) {
    return DRIVER(cudaFuncGetParamInfo(function, number, offset, bytes));
}
PUBLIC Error cuKernelGetParamInfo(Kernel *kernel, size_t number, size_t *offset, size_t *bytes) {
    return cuFuncGetParamInfo(kernel, number, offset, bytes);
}
PUBLIC Error cuFuncLoad(Kernel *function) { return function ? SUCCESS : INVALID_HANDLE; }
PUBLIC Error cuFuncIsLoaded(int *state, Kernel *function) { *state = 1; return function ? SUCCESS : INVALID_HANDLE; }
