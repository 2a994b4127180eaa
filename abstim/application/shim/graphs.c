// Graphs: operations with what each depends on. Captured from streams or built by hand; launched as often as wanted.
#include "graphs.h"

PUBLIC Error cudaGraphCreate(Graph **graph, unsigned flags) {
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return failed(SUCCESS);
}

static uint8_t *copied(const void *data, size_t bytes) {
    uint8_t *copy = malloc(bytes + 1);
    memcpy(copy, data, bytes);
    return copy;
}

Node *add_node(Graph *graph, const Operation *operation, Node *const *before, size_t count) {
    Node *node = calloc(1, sizeof *node);
    *node = (Node){.operation = *operation, .before_count = count, .owner = graph, .enabled = 1};
    node->before = (Node **)copied(before ? before : (Node *const *)&before, before ? count * sizeof(Node *) : 0);
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 16;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof(Node *));
    }
    if (operation->what == LAUNCH)
        node->operation.launch.parameters =
            copied(operation->launch.parameters, operation->launch.kernel->parameter_bytes);
    return graph->nodes[graph->count++] = node;
}

void add_default(Graph *graph, uint32_t *value, uint32_t initial) {
    graph->defaults = realloc(graph->defaults, (graph->default_count + 1) * sizeof(Default));
    graph->defaults[graph->default_count++] = (Default){value, initial};
}

// Of a graph and all graphs in it
static void assign_defaults(const Graph *graph) {
    for (size_t k = 0; k < graph->default_count; k++) *graph->defaults[k].value = graph->defaults[k].initial;
    for (size_t k = 0; k < graph->count; k++) {
        const Operation *o = &graph->nodes[k]->operation;
        if (o->what == CHILD) assign_defaults(o->child.graph);
        for (unsigned b = 0; o->what == CONDITION && b < o->condition.count; b++)
            assign_defaults(o->condition.bodies[b]);
    }
}

static Graph *duplicate(const Graph *graph) {
    Graph *copy = calloc(1, sizeof *copy);
    for (size_t k = 0; k < graph->default_count; k++)
        add_default(copy, graph->defaults[k].value, graph->defaults[k].initial);
    for (size_t k = 0; k < graph->count; k++) {
        Operation operation = graph->nodes[k]->operation;
        if (operation.what == CONDITION) {
            operation.condition.bodies = (Graph **)copied(operation.condition.bodies, operation.condition.count * sizeof(Graph *));
            for (unsigned b = 0; b < operation.condition.count; b++)
                operation.condition.bodies[b] = duplicate(operation.condition.bodies[b]);
        }
        add_node(copy, &operation, NULL, 0);
    }
    for (size_t k = 0; k < graph->count; k++) {
        const Node *from = graph->nodes[k];
        Node *to = copy->nodes[k];
        to->enabled = from->enabled, to->before_count = from->before_count;
        to->before = realloc(to->before, from->before_count * sizeof(Node *) + 1);
        for (size_t b = 0; b < from->before_count; b++)
            for (size_t n = 0; n < graph->count; n++)
                if (graph->nodes[n] == from->before[b]) to->before[b] = copy->nodes[n];
    }
    return copy;
}

// Where a node is done, and the event behind it, as abstim's clock knows them: a node goes on where one that it follows
// was done, unless another did, and else on a stream of its own. The last place is where the graph begins.
typedef struct { Stream own, *on; uint64_t event; int done, continued; } Place;

static int is_chain(const Graph *graph) {
    for (size_t k = 0; k < graph->count; k++) {
        const Node *node = graph->nodes[k];
        if (node->before_count != (k > 0) || (k && node->before[0] != graph->nodes[k - 1])) return 0;
    }
    return 1;
}

static void tell_event(int what, uint64_t event, const Stream *stream) {
    struct record_request request = {event, stream ? stream->id : 0};
    tell(what, &request, sizeof request, NULL, 0);
}

static size_t number_of(const Graph *graph, const Node *node) {
    size_t number = 0;
    while (graph->nodes[number] != node) number++;
    return number;
}

// Behind the nodes that a node follows
static void find_place(const Graph *graph, const Node *node, Place *places, Place *place) {
    Place *before[node->before_count + 1];
    size_t count = node->before_count;
    for (size_t b = 0; b < count; b++) before[b] = &places[number_of(graph, node->before[b])];
    if (!count) before[count++] = &places[graph->count];
    place->on = &place->own;
    for (size_t b = 0; b < count && place->on == &place->own; b++)
        if (!before[b]->continued) place->on = before[b]->on, before[b]->continued = 1;
    if (place->on == &place->own) tell_stream(&place->own);
    for (size_t b = 0; b < count; b++) tell_event(MESSAGE_WAIT, before[b]->event, place->on);
}

static Error run(Graph *graph, Node *node, Place *places, int branches) {
    Place *place = &places[number_of(graph, node)];
    if (place->done) return SUCCESS;
    place->done = 1;
    for (size_t b = 0; b < node->before_count; b++) {
        Error error = run(graph, node->before[b], places, branches);
        if (error) return error;
    }
    if (branches) find_place(graph, node, places, place);
    Error error = node->enabled ? perform(&node->operation, place->on) : SUCCESS;
    if (branches) tell_event(MESSAGE_RECORD, place->event, place->on);
    return error;
}

Error replay(Graph *graph, Stream *stream) {
    Place *places = calloc(graph->count + 1, sizeof *places);
    int branches = !is_chain(graph);
    if (branches && !graph->ids) graph->ids = new_ids(2 * graph->count + 2);
    for (size_t k = 0; k <= graph->count; k++) {
        uint64_t id = graph->ids + 2 * k;
        places[k] = (Place){.own = {.id = id, .flags = 1, .priority = stream ? stream->priority : 0}, .on = stream, .event = id + 1};
    }
    if (branches) tell_event(MESSAGE_RECORD, places[graph->count].event, stream);
    Error error = SUCCESS;
    for (size_t k = 0; k < graph->count && !error; k++) error = run(graph, graph->nodes[k], places, branches);
    for (size_t k = 0; branches && k < graph->count; k++)
        if (places[k].done && !places[k].continued) tell_event(MESSAGE_WAIT, places[k].event, stream);
    free(places);
    return failed(error);
}

PUBLIC Error cudaGraphInstantiate(Graph **executable, Graph *graph, unsigned long long flags) {
    (void)flags;
    *executable = duplicate(graph);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphInstantiateWithFlags(Graph **executable, Graph *graph, unsigned long long flags) {
    return cudaGraphInstantiate(executable, graph, flags);
}
PUBLIC Error cudaGraphClone(Graph **copy, Graph *graph) { return cudaGraphInstantiate(copy, graph, 0); }
PUBLIC Error cudaGraphUpload(Graph *graph, Stream *stream) { (void)graph, (void)stream; return failed(SUCCESS); }
PUBLIC Error cudaGraphDebugDotPrint(Graph *graph, const char *path, unsigned flags) {
    (void)graph, (void)path, (void)flags;
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphLaunch(Graph *graph, Stream *stream) {
    CHECK_STREAM(stream);
    Stream *on = actual(stream);
    if (on && on->capture) {
        Operation operation = {.what = CHILD, .child = {graph}};
        return submit(&operation, on);
    }
    if (graph->launched) tell_event(MESSAGE_WAIT, graph->launched, on);  // a graph does not run beside itself
    else graph->launched = new_ids(1);
    assign_defaults(graph);
    Error error = replay(graph, on);
    tell_event(MESSAGE_RECORD, graph->launched, on);
    return error;
}

static Error destroy(Graph *graph) {
    for (size_t k = 0; k < graph->count; k++) {
        const Operation *o = &graph->nodes[k]->operation;
        for (unsigned b = 0; o->what == CONDITION && b < o->condition.count; b++) destroy(o->condition.bodies[b]);
        if (o->what == CONDITION) free(o->condition.bodies);
        if (graph->nodes[k]->operation.what == LAUNCH) free(graph->nodes[k]->operation.launch.parameters);
        free(graph->nodes[k]->before);
        free(graph->nodes[k]);
    }
    free(graph->nodes);
    free(graph->defaults);
    free(graph->joined);
    free(graph->recorded);
    free(graph);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphDestroy(Graph *graph) { return destroy(graph); }
PUBLIC Error cudaGraphExecDestroy(Graph *graph) { return destroy(graph); }

enum { TOPOLOGY_CHANGED = 2, KIND_CHANGED = 3, UPDATE_FAILED = 910 };  // cudaGraphExecUpdateResult; an error
static int difference(const Graph *a, const Graph *b) {
    if (a->count != b->count) return TOPOLOGY_CHANGED;
    for (size_t k = 0; k < a->count; k++) {
        if (a->nodes[k]->operation.what != b->nodes[k]->operation.what) return KIND_CHANGED;
        if (a->nodes[k]->before_count != b->nodes[k]->before_count) return TOPOLOGY_CHANGED;
        for (size_t e = 0; e < a->nodes[k]->before_count; e++)
            if (number_of(a, a->nodes[k]->before[e]) != number_of(b, b->nodes[k]->before[e])) return TOPOLOGY_CHANGED;
    }
    return 0;
}

// A graph like the one instantiated takes its place
PUBLIC Error cudaGraphExecUpdate(Graph *executable, Graph *graph, int *result) {
    if ((*result = difference(executable, graph))) return failed(UPDATE_FAILED);
    Graph *fresh = duplicate(graph), old = *executable;
    *executable = *fresh, *fresh = old;
    executable->launched = old.launched;
    return destroy(fresh);
}

PUBLIC Error cudaGraphGetNodes(Graph *graph, Node **nodes, size_t *count) {
    if (nodes) memcpy(nodes, graph->nodes, *count * sizeof(Node *));
    else *count = graph->count;
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphGetRootNodes(Graph *graph, Node **nodes, size_t *count) {
    size_t found = 0;
    for (size_t k = 0; k < graph->count; k++)
        if (!graph->nodes[k]->before_count && (!nodes || found < *count)) {
            if (nodes) nodes[found] = graph->nodes[k];
            found++;
        }
    *count = found;
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphNodeGetType(Node *node, int *type) {
    static const int types[] = {[LAUNCH] = 0, [COPY] = 1, [FILL] = 2, [CALL] = 3, [CHILD] = 4, [NOTHING] = 5,
                                [WAIT] = 6, [RECORD] = 7, [ALLOCATE] = 10, [RELEASE] = 11, [CONDITION] = 13};
    *type = types[node->operation.what];
    return failed(SUCCESS);
}

static void depend(Node *node, Node *on) {
    node->before = realloc(node->before, (node->before_count + 1) * sizeof(Node *));
    node->before[node->before_count++] = on;
}
#if RUNTIME < 13
PUBLIC Error cudaGraphAddDependencies(Graph *graph, Node *const *from, Node *const *to, size_t count) {
#else
PUBLIC Error cudaGraphAddDependencies(Graph *graph, Node *const *from, Node *const *to, const void *data, size_t count) {
    (void)data;
#endif
    (void)graph;
    for (size_t k = 0; k < count; k++) depend(to[k], from[k]);
    return failed(SUCCESS);
}

typedef struct { void *function; Dim3 grid, block; unsigned shared_bytes; void **arguments, **extra; } KernelNode;
typedef struct { void *to; size_t pitch; unsigned value, element_bytes; size_t width, height; } FillNode;
uint8_t *packed(const Kernel *kernel, void **arguments);
Error copy_3d(const void *parameters, Operation *operation);

static Error as_launch(const KernelNode *p, Operation *o) {
    Kernel *kernel = kernel_of(p->function);
    Error error = resolve(kernel);
    if (error) return error;
    if (!p->arguments && kernel->count) return missing("cudaGraphAddKernelNode with extra in place of kernelParams");
    *o = (Operation){.what = LAUNCH};
    o->launch.kernel = kernel, o->launch.grid = p->grid, o->launch.block = p->block;
    o->launch.shared_bytes = p->shared_bytes, o->launch.parameters = packed(kernel, p->arguments);
    return SUCCESS;
}

static void as_fill(const FillNode *p, Operation *o) {
    *o = (Operation){.what = FILL};
    o->fill.to = p->to, o->fill.pitch = p->pitch, o->fill.value = p->value, o->fill.element_bytes = p->element_bytes;
    o->fill.width = p->width * p->element_bytes, o->fill.height = p->height, o->fill.depth = 1;
}

PUBLIC Error cudaGraphAddKernelNode(Node **node, Graph *graph, Node *const *before, size_t count, const KernelNode *p) {
    Operation operation;
    Error error = as_launch(p, &operation);
    if (error) return failed(error);
    *node = add_node(graph, &operation, before, count);
    free(operation.launch.parameters);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphAddMemsetNode(Node **node, Graph *graph, Node *const *before, size_t count, const FillNode *p) {
    Operation operation;
    as_fill(p, &operation);
    *node = add_node(graph, &operation, before, count);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphAddHostNode(Node **node, Graph *graph, Node *const *before, size_t count, const CallNode *p) {
    Operation operation = {.what = CALL, .call = {p->function, p->argument}};
    *node = add_node(graph, &operation, before, count);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphAddEmptyNode(Node **node, Graph *graph, Node *const *before, size_t count) {
    Operation operation = {.what = NOTHING};
    *node = add_node(graph, &operation, before, count);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphAddChildGraphNode(Node **node, Graph *graph, Node *const *before, size_t count, Graph *child) {
    Operation operation = {.what = CHILD, .child = {duplicate(child)}};
    *node = add_node(graph, &operation, before, count);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphAddEventRecordNode(Node **node, Graph *graph, Node *const *before, size_t count, Event *event) {
    Operation operation = {.what = RECORD, .event = {event}};
    *node = add_node(graph, &operation, before, count);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphAddEventWaitNode(Node **node, Graph *graph, Node *const *before, size_t count, Event *event) {
    Operation operation = {.what = WAIT, .event = {event}};
    *node = add_node(graph, &operation, before, count);
    return failed(SUCCESS);
}
PUBLIC Error cudaGraphAddMemcpyNode(Node **node, Graph *graph, Node *const *before, size_t count, const void *p) {
    Operation operation;
    Error error = copy_3d(p, &operation);
    if (!error) *node = add_node(graph, &operation, before, count);
    return failed(error);
}
PUBLIC Error cudaGraphAddMemcpyNode1D(Node **node, Graph *graph, Node *const *before, size_t count, void *to,
                                      const void *from, size_t bytes, int kind) {
    (void)kind;
    Operation operation = {.what = COPY, .copy = {to, from, bytes, 0, bytes, 0, bytes, 1, 1}};
    *node = add_node(graph, &operation, before, count);
    return failed(SUCCESS);
}

// Memory of a graph lives from the node's making on: its address is known then.
PUBLIC Error cudaGraphAddMemAllocNode(Node **node, Graph *graph, Node *const *before, size_t count, AllocateNode *p) {
    Operation operation = {.what = NOTHING};
    Error error = allocate(&p->pointer, p->bytes, DEVICE_MEMORY);
    if (!error) keep_for_graph(p->pointer), *node = add_node(graph, &operation, before, count);
    return error;
}
PUBLIC Error cudaGraphAddMemFreeNode(Node **node, Graph *graph, Node *const *before, size_t count, void *pointer) {
    (void)pointer;  // kept: the graph may be launched again
    return cudaGraphAddEmptyNode(node, graph, before, count);
}
PUBLIC Error cudaDeviceGraphMemTrim(int device) { (void)device; return failed(SUCCESS); }

PUBLIC Error cudaGraphKernelNodeSetParams(Node *node, const KernelNode *p) {
    Operation operation;
    Error error = as_launch(p, &operation);
    if (error) return failed(error);
    if (node->operation.what == LAUNCH) {  // what its attributes say stays
        operation.launch.cluster = node->operation.launch.cluster;
        operation.launch.cooperative = node->operation.launch.cooperative;
        operation.launch.programmatic = node->operation.launch.programmatic;
        free(node->operation.launch.parameters);
    }
    node->operation = operation;
    return failed(SUCCESS);
}
// Nodes of an executable graph are named by those of the graph it was made from: by their place.
static Node *counterpart(Graph *executable, const Node *node) {
    for (size_t k = 0; k < node->owner->count; k++)
        if (node->owner->nodes[k] == node && k < executable->count) return executable->nodes[k];
    return NULL;
}
PUBLIC Error cudaGraphExecKernelNodeSetParams(Graph *executable, Node *node, const KernelNode *p) {
    Node *own = counterpart(executable, node);
    return own ? cudaGraphKernelNodeSetParams(own, p) : failed(INVALID_VALUE);
}
PUBLIC Error cudaGraphNodeSetEnabled(Graph *executable, Node *node, unsigned enabled) {
    Node *own = counterpart(executable, node);
    if (own) own->enabled = (int)enabled;
    return failed(own ? SUCCESS : INVALID_VALUE);
}
