// Fat binaries, kernels and variables that a program registers before main, and those it loads later.
#include "shim.h"

typedef struct { uint32_t magic, version; const void *data; void *prelinked; } Wrapper;
typedef struct { uint32_t magic; uint16_t version, header_bytes; uint64_t bytes; } FatHeader;
typedef struct { const void *host; uint64_t module; char *name; uint8_t *address; size_t bytes; void **managed; } Variable;
enum { WRAPPER = 0x466243B1, FAT = 0xBA55ED50, ELF = 0x464C457F };

static Kernel **kernels;
static unsigned kernel_count, kernel_room;
static Variable **variables;
static unsigned variable_count, variable_room;

static void *grown(void *array, unsigned count, unsigned *room) {
    if (count < *room) return array;
    *room = *room ? 2 * *room : 64;
    return realloc(array, *room * sizeof(void *));
}

Error send_module(uint64_t kind, const void *data, size_t bytes, uint64_t *module) {
    struct module_request request = {kind};
    struct module_reply reply = {0};
    Error error = ask(MESSAGE_MODULE, &request, sizeof request, data, bytes, &reply, sizeof reply);
    *module = reply.module;
    return error;
}

static Error send_fat(const void *data, uint64_t *module) {
    const FatHeader *header = data;
    return send_module(0, data, header->header_bytes + header->bytes, module);
}

static size_t elf_bytes(const uint8_t *elf) {
    uint64_t sections;
    uint16_t size, count;
    memcpy(&sections, elf + 40, 8), memcpy(&size, elf + 58, 2), memcpy(&count, elf + 60, 2);
    return sections + (size_t)size * count;
}

// A wrapper or fat binary, PTX text, or machine code (which abstim names)
Error load_image(const void *image, uint64_t *module) {
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == WRAPPER) return send_fat(((const Wrapper *)image)->data, module);
    if (magic == FAT) return send_fat(image, module);
    if (magic == ELF) return send_module(1, image, elf_bytes(image), module);
    return send_module(1, image, strlen(image), module);
}

// A program linked by nvlink hands over machine code; the PTX of its parts is in the list of prelinked fat binaries.
static uint64_t load_prelinked(void *const *list) {
    uint64_t module = 0;
    struct part_request request;
    struct part_reply reply;
    for (; *list; list++) {
        uint64_t part;
        send_fat(*list, &part);
        if (!module) {
            module = part;
            continue;
        }
        request = (struct part_request){module, part};
        ASK(PART, request, reply);
    }
    return module;
}

PUBLIC void **__cudaRegisterFatBinary(void *image) {
    const Wrapper *wrapper = image;
    uint64_t *handle = calloc(1, sizeof *handle);
    if (wrapper->version == 2 && wrapper->prelinked) *handle = load_prelinked(wrapper->prelinked);
    else load_image(image, handle);
    return (void **)handle;
}

PUBLIC void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
PUBLIC void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
PUBLIC char __cudaInitModule(void **handle) { (void)handle; return 1; }

Kernel *add_kernel(uint64_t module, const void *host, const char *name) {
    Kernel *kernel = calloc(1, sizeof *kernel);
    *kernel = (Kernel){.host = host, .module = module, .name = strdup(name)};
    lock();
    kernels = grown(kernels, kernel_count, &kernel_room);
    kernels[kernel_count++] = kernel;
    unlock();
    return kernel;
}

PUBLIC void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                                   void *tid, void *bid, void *block, void *grid, int *warp) {
    (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    add_kernel(*(uint64_t *)handle, host, name);
}

static Variable *add_variable(void **handle, const void *host, const char *name, size_t bytes) {
    Variable *variable = calloc(1, sizeof *variable);
    *variable = (Variable){.host = host, .module = *(uint64_t *)handle, .name = strdup(name), .bytes = bytes};
    lock();
    variables = grown(variables, variable_count, &variable_room);
    variables[variable_count++] = variable;
    unlock();
    return variable;
}

PUBLIC void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t bytes,
                              int constant, int global) {
    (void)device, (void)ext, (void)constant, (void)global;
    add_variable(handle, host, name, bytes);
}

PUBLIC void __cudaRegisterHostVar(void **handle, const char *name, char *host, size_t bytes) {
    add_variable(handle, host, name, bytes);
}

static Error find(Variable *variable) {
    struct variable_request request = {variable->module};
    struct variable_reply reply = {0};
    if (variable->address) return SUCCESS;
    Error error =
        ask(MESSAGE_VARIABLE, &request, sizeof request, variable->name, strlen(variable->name), &reply, sizeof reply);
    if (error) return error;
    variable->address = (uint8_t *)reply.address, variable->bytes = reply.bytes;
    return SUCCESS;
}

// The host reads a managed variable through a pointer, which has to lead there from the beginning
PUBLIC void __cudaRegisterManagedVar(void **handle, void **pointer, char *device, const char *name, int ext,
                                     size_t bytes, int constant, int global) {
    (void)device, (void)ext, (void)constant, (void)global;
    Variable *variable = add_variable(handle, pointer, name, bytes);
    if (!find(variable)) *pointer = variable->address;
}

Kernel *kernel_of(const void *function) {
    for (unsigned k = 0; k < kernel_count; k++)
        if (kernels[k]->host == function || kernels[k] == function) return kernels[k];
    return NULL;
}

Error resolve(Kernel *kernel) {
    if (!kernel) return INVALID_FUNCTION;
    if (kernel->id) return SUCCESS;
    struct function_request request = {kernel->module};
    struct function_reply reply = {0};
    size_t bytes;
    lock();
    Error error =
        ask(MESSAGE_FUNCTION, &request, sizeof request, kernel->name, strlen(kernel->name), &reply, sizeof reply);
    if (!error) {
        const uint32_t *layout = (const uint32_t *)reply_payload(&bytes);
        kernel->count = (unsigned)(bytes / 8);
        kernel->offsets = malloc(bytes + 8), kernel->sizes = kernel->offsets + kernel->count;
        for (unsigned k = 0; k < kernel->count; k++) {
            kernel->offsets[k] = layout[2 * k], kernel->sizes[k] = layout[2 * k + 1];
            kernel->parameter_bytes = kernel->offsets[k] + kernel->sizes[k];
        }
        kernel->id = reply.function;
    }
    unlock();
    return error;
}

PUBLIC Error __cudaGetKernel(Kernel **handle, const void *function) {
    *handle = kernel_of(function);
    return *handle ? SUCCESS : failed(INVALID_FUNCTION);
}

PUBLIC Error cudaGetKernel(Kernel **handle, const void *function) { return __cudaGetKernel(handle, function); }
PUBLIC Error cudaGetFuncBySymbol(Kernel **handle, const void *function) { return __cudaGetKernel(handle, function); }

PUBLIC Error cudaFuncGetName(const char **name, const void *function) {
    Kernel *kernel = kernel_of(function);
    if (!kernel) return failed(INVALID_FUNCTION);
    *name = kernel->name;
    return SUCCESS;
}

PUBLIC Error cudaFuncGetParamInfo(const void *function, size_t number, size_t *offset, size_t *bytes) {
    Kernel *kernel = kernel_of(function);
    Error error = resolve(kernel);
    if (error || number >= kernel->count) return failed(error ? error : INVALID_VALUE);
    *offset = kernel->offsets[number];
    if (bytes) *bytes = kernel->sizes[number];
    return SUCCESS;
}

// A symbol is the address of its host variable
Error symbol(const void *host, uint8_t **address, size_t *bytes) {
    for (unsigned k = variable_count; k-- > 0;)
        if (variables[k]->host == host || (variables[k]->managed && *variables[k]->managed == host)) {
            Error error = find(variables[k]);
            *address = variables[k]->address, *bytes = variables[k]->bytes;
            return error;
        }
    return INVALID_SYMBOL;
}

PUBLIC Error cudaGetSymbolAddress(void **pointer, const void *host) {
    size_t bytes;
    return failed(symbol(host, (uint8_t **)pointer, &bytes));
}

PUBLIC Error cudaGetSymbolSize(size_t *bytes, const void *host) {
    uint8_t *address;
    return failed(symbol(host, &address, bytes));
}

PUBLIC Error cudaLibraryLoadData(uint64_t **library, const void *image, void *a, void *b, unsigned c, void *d, void *e,
                                 unsigned f) {
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    *library = calloc(1, sizeof **library);
    return failed(load_image(image, *library));
}

PUBLIC Error cudaLibraryGetKernel(Kernel **kernel, uint64_t *library, const char *name) {
    *kernel = add_kernel(*library, NULL, name);
    return failed(resolve(*kernel));
}

PUBLIC Error cudaLibraryUnload(uint64_t *library) { (void)library; return SUCCESS; }
