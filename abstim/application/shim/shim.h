// What the parts of the shim have in common. The shim stands in a CUDA program's process in place of the CUDA runtime:
// it answers what it can by itself, and asks the process of abstim, at the other end of a socket, for the rest.
// Types and numbers are those of CUDA's public application binary interface; no header of CUDA is needed.
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol.h"  // made by abstim/application/call_server.py

#define PUBLIC __attribute__((visibility("default")))

typedef int Error;
enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INITIALIZATION_ERROR = 3, INVALID_CONFIGURATION = 9, INVALID_PITCH = 12,
    INVALID_SYMBOL = 13,
    INVALID_TEXTURE = 18, INVALID_DIRECTION = 21, INVALID_FUNCTION = 98, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, UNSUPPORTED_LIMIT = 215, PEER_NOT_ENABLED = 705, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILURE = 719, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, UNJOINED = 904,
    IMPLICIT = 906, INVALID_CLUSTER = 912, UNKNOWN = 999,
    INVALID_HANDLE = 400, CAPTURED_EVENT = 907, INVALID_CONTEXT = 201, NO_BINARY = 209, FILE_NOT_FOUND = 301,
};

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { size_t width, height, depth; } Extent;
typedef struct { size_t x, y, z; } Position;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } PitchedPointer;
typedef struct { int x, y, z, w, kind; } ChannelFormat;

// A kernel of a module. `id` is 0 until the kernel is first used: its PTX is parsed then.
typedef struct {
    const void *host;  // the host function that launches it, or NULL
    uint64_t module, id;
    char *name;
    unsigned count;
    uint32_t *offsets, *sizes;  // of its parameters in the parameter block
    unsigned parameter_bytes;
    int large_clusters;  // of more blocks than every GPU with clusters can have
} Kernel;

typedef struct Graph Graph;
typedef struct Context Context;  // the driver's
typedef struct { struct Node **nodes; size_t count; } Tails;  // of what is captured: what comes next follows them
typedef struct Stream { uint64_t id; unsigned flags; int priority; Graph *capture; int origin; Tails tails; } Stream;
typedef struct Event { uint64_t id; int recorded, untimed, captured; Graph *capture; Tails tails; } Event;

// What a stream can be told to do, now or (captured) each time a graph is launched.
enum { LAUNCH, COPY, FILL, CALL, RECORD, WAIT, NOTHING, ALLOCATE, RELEASE, CHILD, CONDITION };
typedef struct {
    int what;
    union {
        struct { Kernel *kernel; Dim3 grid, block, cluster; uint64_t shared_bytes; int cooperative, programmatic; uint8_t *parameters; } launch;
        struct {
            uint8_t *to; const uint8_t *from;
            size_t to_pitch, to_slice, from_pitch, from_slice, width, height, depth;  // bytes, rows, slices
        } copy;
        struct { uint8_t *to; size_t pitch, slice, width, height, depth; uint32_t value; unsigned element_bytes; } fill;
        struct { void (*function)(void *); void *argument; } call;
        struct { Event *event; } event;
        struct { uint64_t address; } memory;
        struct { Graph *graph; } child;
        struct { uint32_t *value; unsigned type, count; Graph **bodies; } condition;
    };
} Operation;

typedef struct { int id; char pad[4]; union { char bytes[64]; int number; Dim3 size; } value; } LaunchAttribute;

// An array, and what textures are made of, as the runtime has them
typedef struct { uint8_t *data; ChannelFormat format; Extent extent; size_t texel_bytes; unsigned flags; } Array;
typedef struct {
    int type;
    union {
        struct { Array *array; } array;
        struct { void *pointer; ChannelFormat format; size_t bytes; } linear;
        struct { void *pointer; ChannelFormat format; size_t width, height, pitch; } pitched;
        int reserved[32];
    };
    unsigned flags;
} RuntimeResource;
typedef struct {
    int address[3], filter, as_float, srgb;
    float border[4];
    int normalized;
} RuntimeSampling;  // what follows is of mipmaps
// One side of a copy: where it begins, and how far rows and slices are apart
typedef struct { uint8_t *at; size_t pitch, slice, unit; } Side;

// wire.c
Error ask(uint32_t message, const void *request, size_t request_bytes, const void *payload, size_t payload_bytes,
          void *reply, size_t reply_bytes);
void tell(uint32_t message, const void *request, size_t request_bytes, const void *payload, size_t payload_bytes);
const uint8_t *reply_payload(size_t *bytes);
Error failed(Error error);   // remembers an error for cudaGetLastError, and gives it back
Error sticky(Error error);   // one that no later call gets rid of
Error swap_last_error(Error error);
void connect_once(void);
void lock(void);
void unlock(void);
int on_device(const void *address);
int share_pages(void *host, void *device, size_t bytes);
int unshare_pages(void *host, const void *device, size_t bytes);
Error missing(const char *name);
#define ASK(message, request, reply) \
    ask(MESSAGE_##message, &(request), sizeof(request), NULL, 0, &(reply), sizeof(reply))

// modules.c
Kernel *kernel_of(const void *function);
Error resolve(Kernel *kernel);
Kernel *add_kernel(uint64_t module, const void *host, const char *name);
Error send_module(uint64_t kind, const void *data, size_t bytes, uint64_t *module);
Error load_image(const void *image, uint64_t *module);
Error symbol(const void *host, uint8_t **address, size_t *bytes);

// launches.c
uint8_t *packed(const Kernel *kernel, void **arguments);
Error attributes_of(Kernel *kernel, struct attributes_reply *reply);
Error set_attribute(Kernel *kernel, int attribute, int value);
// What attributes say of a launch; a cluster of no blocks is that of the kernel itself
typedef struct { int cooperative, programmatic, records; Dim3 cluster; } LaunchTraits;
#define MISSING_RECORDS "launch attributes that record events"
LaunchTraits traits_of(const LaunchAttribute *attributes, unsigned count);
Error check_cluster(const Kernel *kernel, Dim3 cluster);

// arrays.c
Side side_of_array(const Array *array, size_t byte, size_t y, size_t z);
Operation between(Side to, Side from, Extent bytes);

// device.c
const char *name_of_device(void);
size_t bytes_of_device(void);

// memory.c
Error allocate(void **pointer, size_t bytes, int kind);
Error release(void *pointer);
void keep_for_graph(const void *pointer);
typedef struct Pool Pool;
void belongs_to(const void *pointer, Pool *pool);
int reachable(const void *at, size_t pitch, size_t slice, size_t width, size_t height, size_t depth);
int of_device(const void *address);
int kind_of(const void *address, uint8_t **start, size_t *bytes);
enum { HOST_MEMORY = 1, DEVICE_MEMORY = 2, MANAGED_MEMORY = 3 };  // as cudaMemoryType

// pools.c
void count_of_pool(Pool *pool, int64_t bytes);

// graphs.c
struct Node *add_node(Graph *graph, const Operation *operation, struct Node *const *before, size_t count);
void add_default(Graph *graph, uint32_t *value, uint32_t initial);
Error replay(Graph *graph, Stream *stream);
typedef struct { void (*function)(void *); void *argument; } CallNode;
typedef struct { char properties[88]; const void *access; size_t access_count, bytes; void *pointer; } AllocateNode;

// captures.c
Error breaks_capture(int implicit);

// graph_nodes.c
Error decide(const Operation *o, Stream *stream);

// streams.c
Error submit(Operation *operation, Stream *stream);
Error perform(Operation *operation, Stream *stream);
uint64_t stream_id(Stream *stream);
void print_pending(void);
void forget_pending(void);
int is_handle(const void *handle);  // of a stream or event that there is
int is_stream(const Stream *stream);
Stream *actual(Stream *stream);  // NULL: the default one
#define CHECK_STREAM(stream) if (!is_stream(stream)) return failed(INVALID_HANDLE)
void keep_printed(const uint8_t *text, size_t bytes);

// driver.c
void use_primary(void);  // the runtime's calls make the primary context a thread's own, where it has none
Error of_driver(Error error);
// What a call of the runtime gives, as the driver gives it
#define DRIVER(call) ({ Error kept_ = swap_last_error(SUCCESS), found_ = (call); swap_last_error(kept_); of_driver(found_); })
