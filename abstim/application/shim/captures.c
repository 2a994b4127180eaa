// Graphs captured from streams: what a stream is told to do becomes a node.
#include "graphs.h"

Error cudaGraphCreate(Graph **graph, unsigned flags);

void follow(Tails *tails, Node *const *before, size_t count) {
    for (size_t k = 0; k < count; k++) {
        size_t same = 0;
        while (same < tails->count && tails->nodes[same] != before[k]) same++;
        if (same < tails->count) continue;
        tails->nodes = realloc(tails->nodes, (tails->count + 1) * sizeof(Node *));
        tails->nodes[tails->count++] = before[k];
    }
}

void join(Stream *stream, Graph *graph) {
    stream->capture = graph, stream->tails.count = 0;
    graph->joined = realloc(graph->joined, (graph->joined_count + 1) * sizeof(Stream *));
    graph->joined[graph->joined_count++] = stream;
}

void record_in_capture(Event *event, Stream *stream) {
    Graph *graph = event->capture = stream->capture;
    event->captured = 1, event->tails.count = 0;
    follow(&event->tails, stream->tails.nodes, stream->tails.count);
    graph->recorded = realloc(graph->recorded, (graph->recorded_count + 1) * sizeof(Event *));
    graph->recorded[graph->recorded_count++] = event;
}

void invalidate(Graph *captured) { captured->invalid = 1; }

void capture(Stream *stream, Operation *operation) {
    Node *node = add_node(stream->capture, operation, stream->tails.nodes, stream->tails.count);
    stream->tails.count = 0;
    follow(&stream->tails, &node, 1);
}

// Captures that have begun, and what each forbids: a mode of cudaStreamCaptureMode, for its thread or for all
enum { FOR_ALL_THREADS, FOR_ITS_THREAD, RELAXED, MOST_CAPTURES = 64 };
static struct { Stream *origin; int mode; pthread_t thread; } begun[MOST_CAPTURES];
static size_t begun_count;
static __thread int own_mode = FOR_ALL_THREADS;

static int forbids(size_t k, int implicit) {
    if (!is_stream(begun[k].origin)) return 0;
    if (implicit) return !(begun[k].origin->flags & 1);  // a stream that the default one waits for
    if (begun[k].mode == RELAXED || own_mode == RELAXED) return 0;
    return pthread_equal(begun[k].thread, pthread_self()) || (begun[k].mode == FOR_ALL_THREADS && own_mode == FOR_ALL_THREADS);
}

// What a capture that has begun does not allow ends it: work of the default stream (`implicit`), or calls that wait
Error breaks_capture(int implicit) {
    Error error = SUCCESS;
    lock();
    for (size_t k = 0; k < begun_count; k++)
        if (forbids(k, implicit)) begun[k].origin->capture->invalid = 1, error = implicit ? IMPLICIT : CAPTURE_UNSUPPORTED;
    unlock();
    return error;
}

static Error begin(Stream *stream, Graph *graph, int mode) {
    lock();
    int room = begun_count < MOST_CAPTURES;
    if (room) begun[begun_count].origin = stream, begun[begun_count].mode = mode, begun[begun_count++].thread = pthread_self();
    stream->capture = graph, stream->origin = 1, stream->tails.count = 0;
    unlock();
    return failed(room ? SUCCESS : missing("cudaStreamBeginCapture of more than 64 streams"));
}

static void end(const Stream *stream) {
    lock();
    for (size_t k = begun_count; k-- > 0;)
        if (begun[k].origin == stream) begun[k] = begun[--begun_count];
    unlock();
}

// Does a node come before another of its graph, or before what its capture ended with?
static int is_followed(const Graph *graph, const Node *node, const Tails *ends) {
    for (size_t k = 0; k < ends->count; k++)
        if (ends->nodes[k] == node) return 1;
    for (size_t k = 0; k < graph->count; k++)
        for (size_t b = 0; b < graph->nodes[k]->before_count; b++)
            if (graph->nodes[k]->before[b] == node) return 1;
    return 0;
}

static int all_joined(const Graph *graph, const Stream *origin) {
    for (size_t k = 0; k < graph->joined_count; k++) {
        const Stream *other = graph->joined[k];
        for (size_t t = 0; is_stream(other) && other->capture == graph && t < other->tails.count; t++)
            if (!is_followed(graph, other->tails.nodes[t], &origin->tails)) return 0;
    }
    return 1;
}

PUBLIC Error cudaThreadExchangeStreamCaptureMode(int *mode) {
    int before = own_mode;
    if (*mode < FOR_ALL_THREADS || *mode > RELAXED) return failed(INVALID_VALUE);
    own_mode = *mode, *mode = before;
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamBeginCapture(Stream *stream, int mode) {
    CHECK_STREAM(stream);
    Graph *graph;
    if ((uintptr_t)stream < 3) return failed(CAPTURE_UNSUPPORTED);
    if (stream->capture) return failed(INVALID_VALUE);
    cudaGraphCreate(&graph, 0);
    return begin(stream, graph, mode);
}
PUBLIC Error cudaStreamBeginCaptureToGraph(Stream *stream, Graph *graph, void *before, void *data, size_t count,
                                           int mode) {
    (void)data;
    CHECK_STREAM(stream);
    if ((uintptr_t)stream < 3) return failed(CAPTURE_UNSUPPORTED);
    if (stream->capture) return failed(INVALID_VALUE);
    Error error = begin(stream, graph, mode);
    follow(&stream->tails, before, before ? count : 0);
    return error;
}
PUBLIC Error cudaStreamEndCapture(Stream *stream, Graph **graph) {
    CHECK_STREAM(stream);
    if ((uintptr_t)stream < 3 || !stream->capture) return failed(INVALID_VALUE);
    Graph *captured = stream->capture;
    Error error = captured->invalid ? CAPTURE_INVALIDATED : all_joined(captured, stream) ? SUCCESS : UNJOINED;
    if (graph) *graph = error ? NULL : captured;
    end(stream);
    for (size_t k = 0; k < captured->joined_count; k++)
        if (is_stream(captured->joined[k]) && captured->joined[k]->capture == captured) captured->joined[k]->capture = NULL;
    for (size_t k = 0; k < captured->recorded_count; k++)
        if (is_handle(captured->recorded[k]) && captured->recorded[k]->capture == captured) captured->recorded[k]->capture = NULL;
    captured->joined_count = captured->recorded_count = 0, captured->done = 1, stream->capture = NULL, stream->origin = 0;
    return failed(error);
}
static Error capture_info(Stream *stream, int *status, unsigned long long *id, Graph **graph, Node *const **before,
                          size_t *count) {
    CHECK_STREAM(stream);
    Graph *found = (uintptr_t)stream >= 3 ? stream->capture : NULL;
    *status = found != NULL;
    if (found && id) *id = (uintptr_t)found;
    if (found && graph) *graph = found;
    if (found && before) *before = stream->tails.nodes;
    if (found && count) *count = stream->tails.count;
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamGetCaptureInfo_v2(Stream *stream, int *status, unsigned long long *id, Graph **graph,
                                         Node *const **before, size_t *count) {
    return capture_info(stream, status, id, graph, before, count);
}
PUBLIC Error cudaStreamGetCaptureInfo_v3(Stream *stream, int *status, unsigned long long *id, Graph **graph,
                                         Node *const **before, const void **edges, size_t *count) {
    static const uint64_t plain;
    if (edges) *edges = &plain;
    return capture_info(stream, status, id, graph, before, count);
}
static Error depend_on(Stream *stream, Node *const *before, size_t count, unsigned replaces) {
    CHECK_STREAM(stream);
    if ((uintptr_t)stream < 3 || !stream->capture) return failed(INVALID_VALUE);
    for (size_t k = 0; k < count; k++)
        if (before[k]->owner != stream->capture) return failed(INVALID_VALUE);
    if (replaces) stream->tails.count = 0;
    follow(&stream->tails, before, count);
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamUpdateCaptureDependencies_v2(Stream *stream, Node *const *before, const void *edges,
                                                    size_t count, unsigned flags) {
    (void)edges;
    return depend_on(stream, before, count, flags);
}
#if RUNTIME < 13
PUBLIC Error cudaStreamGetCaptureInfo(Stream *stream, int *status, unsigned long long *id) {
    return capture_info(stream, status, id, NULL, NULL, NULL);
}
PUBLIC Error cudaStreamUpdateCaptureDependencies(Stream *stream, Node *const *before, size_t count, unsigned flags) {
    return depend_on(stream, before, count, flags);
}
#else
PUBLIC Error cudaStreamGetCaptureInfo(Stream *stream, int *status, unsigned long long *id, Graph **graph,
                                      Node *const **before, const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, before, edges, count);
}
PUBLIC Error cudaStreamUpdateCaptureDependencies(Stream *stream, Node *const *before, const void *edges, size_t count,
                                                 unsigned flags) {
    return cudaStreamUpdateCaptureDependencies_v2(stream, before, edges, count, flags);
}
#endif
PUBLIC Error cudaStreamIsCapturing(Stream *stream, int *status) {
    CHECK_STREAM(stream);
    *status = (uintptr_t)stream >= 3 && stream->capture;
    return failed(SUCCESS);
}
