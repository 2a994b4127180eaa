// Nodes of graphs of any kind by one call, and those that only this call makes: graphs that run if, while or where a value
// says so. The handle of such a value is the address of 32 bits on the device, which kernels write.
#include "public_calls.h"

typedef struct Node Node;
typedef struct { uint32_t *value; unsigned type, count; Graph **bodies; } ConditionalNode;
enum { IF, WHILE, SWITCH, ASSIGN_DEFAULT = 1 };

PUBLIC Error cudaGraphConditionalHandleCreate(uint64_t *handle, Graph *graph, unsigned initial, unsigned flags) {
    void *value;
    Error error = allocate(&value, sizeof(uint32_t), DEVICE_MEMORY);
    if (error) return failed(error);
    *(uint32_t *)value = 0;
    if (flags & ASSIGN_DEFAULT) add_default(graph, value, initial);
    *handle = (uint64_t)value;
    return failed(SUCCESS);
}

// What is to be done of a graph's conditional node, when all before it is done
Error decide(const Operation *o, Stream *stream) {
    Error error = SUCCESS;
    const volatile uint32_t *value = o->condition.value;
    while (o->condition.type == WHILE && *value && !error) error = replay(o->condition.bodies[0], stream);
    if (o->condition.type == WHILE) return error;
    unsigned body = o->condition.type == IF ? !*value : *value;
    return body < o->condition.count ? replay(o->condition.bodies[body], stream) : SUCCESS;
}

static Error add_conditional(Node **node, Graph *graph, Node *const *before, size_t count, ConditionalNode *p) {
    unsigned most = p->type == WHILE ? 1 : p->type == IF ? 2 : ~0u;
    if (!p->value || p->type > SWITCH || !p->count || p->count > most) return failed(INVALID_VALUE);
    p->bodies = calloc(p->count, sizeof(Graph *));
    for (unsigned k = 0; k < p->count; k++) cudaGraphCreate(&p->bodies[k], 0);
    Operation operation = {.what = CONDITION, .condition = {p->value, p->type, p->count, p->bodies}};
    *node = add_node(graph, &operation, before, count);
    return failed(SUCCESS);
}

typedef struct {
    int type, reserved[3];
    union {
        struct { void *function; Dim3 grid, block; unsigned shared_bytes; void **arguments, **extra; } kernel;
        struct { int flags, reserved[3]; char parameters[160]; } copy;
        struct { void *to; size_t pitch; unsigned value, element_bytes; size_t width, height; } fill;
        CallNode call;
        AllocateNode allocate;
        struct { void *pointer; } release;
        Graph *child;
        Event *event;
        ConditionalNode condition;
    };
} AnyNode;
#if RUNTIME < 13
PUBLIC Error cudaGraphAddNode(Node **node, Graph *graph, Node *const *before, size_t count, AnyNode *p) {
#else
PUBLIC Error cudaGraphAddNode(Node **node, Graph *graph, Node *const *before, const void *edges, size_t count,
                              AnyNode *p) {
    (void)edges;
#endif
    switch (p->type) {
        case 0: return cudaGraphAddKernelNode(node, graph, before, count, &p->kernel);
        case 1: return cudaGraphAddMemcpyNode(node, graph, before, count, p->copy.parameters);
        case 2: return cudaGraphAddMemsetNode(node, graph, before, count, &p->fill);
        case 3: return cudaGraphAddHostNode(node, graph, before, count, &p->call);
        case 4: return cudaGraphAddChildGraphNode(node, graph, before, count, p->child);
        case 5: return cudaGraphAddEmptyNode(node, graph, before, count);
        case 6: return cudaGraphAddEventWaitNode(node, graph, before, count, p->event);
        case 7: return cudaGraphAddEventRecordNode(node, graph, before, count, p->event);
        case 10: return cudaGraphAddMemAllocNode(node, graph, before, count, &p->allocate);
        case 11: return cudaGraphAddMemFreeNode(node, graph, before, count, p->release.pointer);
        case 13: return add_conditional(node, graph, before, count, &p->condition);
        default: return missing("cudaGraphAddNode of this type");
    }
}
