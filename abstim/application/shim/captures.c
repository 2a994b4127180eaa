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

void capture(Stream *stream, Operation *operation) {
    Node *node = add_node(stream->capture, operation, stream->tails.nodes, stream->tails.count);
    stream->tails.count = 0;
    follow(&stream->tails, &node, 1);
}

PUBLIC Error cudaStreamBeginCapture(Stream *stream, int mode) {
    (void)mode;
    CHECK_STREAM(stream);
    if ((uintptr_t)stream < 3) return failed(CAPTURE_UNSUPPORTED);
    stream->origin = 1, stream->tails.count = 0;
    return cudaGraphCreate(&stream->capture, 0);
}
PUBLIC Error cudaStreamBeginCaptureToGraph(Stream *stream, Graph *graph, void *before, void *data, size_t count,
                                           int mode) {
    (void)data, (void)mode;
    CHECK_STREAM(stream);
    if ((uintptr_t)stream < 3) return failed(CAPTURE_UNSUPPORTED);
    stream->capture = graph, stream->origin = 1, stream->tails.count = 0;
    follow(&stream->tails, before, before ? count : 0);
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamEndCapture(Stream *stream, Graph **graph) {
    CHECK_STREAM(stream);
    if ((uintptr_t)stream < 3 || !stream->capture) return failed(INVALID_VALUE);
    if (graph) *graph = stream->capture;
    Graph *captured = stream->capture;
    for (size_t k = 0; k < captured->joined_count; k++)
        if (is_stream(captured->joined[k]) && captured->joined[k]->capture == captured) captured->joined[k]->capture = NULL;
    for (size_t k = 0; k < captured->recorded_count; k++)
        if (is_handle(captured->recorded[k]) && captured->recorded[k]->capture == captured) captured->recorded[k]->capture = NULL;
    captured->joined_count = captured->recorded_count = 0, captured->done = 1, stream->capture = NULL, stream->origin = 0;
    return failed(SUCCESS);
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
