// Streams, events and what they are told to do. Whatever a program submits is done at once, in the order of submission;
// abstim's clock of the streams says when the GPU would have done it.
#include "shim.h"

static char *printed;
static size_t printed_bytes, printed_room;
static uint64_t made;  // streams and events, for their ids

// What kernels printed appears when the program next waits for the GPU.
void keep_printed(const uint8_t *text, size_t bytes) {
    if (printed_bytes + bytes > printed_room) printed = realloc(printed, printed_room = 2 * (printed_bytes + bytes));
    memcpy(printed + printed_bytes, text, bytes);
    printed_bytes += bytes;
}

void print_pending(void) {
    if (printed_bytes) fwrite(printed, 1, printed_bytes, stdout), fflush(stdout);
    printed_bytes = 0;
}

void forget_pending(void) { printed_bytes = 0; }

// Streams and events that there are
static const void **handles;
static size_t handle_count, handle_room;

static void add_handle(const void *handle) {
    if (handle_count == handle_room) handles = realloc(handles, (handle_room = 2 * handle_room + 64) * sizeof *handles);
    handles[handle_count++] = handle;
}

static size_t place_of(const void *handle) {
    size_t place = handle_count;
    while (place && handles[place - 1] != handle) place--;
    return place;  // from 1; 0 if there is none
}

int is_handle(const void *handle) {
    lock();
    int found = place_of(handle) > 0;
    unlock();
    return found;
}

static Error destroy(void *handle) {
    lock();
    size_t place = place_of(handle);
    if (place) handles[place - 1] = handles[--handle_count], free(handle);
    unlock();
    return failed(place ? SUCCESS : INVALID_HANDLE);
}

int is_stream(const Stream *stream) { return (uintptr_t)stream < 3 || is_handle(stream); }

Error cudaStreamCreate(Stream **stream);

Stream *actual(Stream *stream) {
    static __thread Stream *own;
    if (stream != (Stream *)2) return stream == (Stream *)1 ? NULL : stream;
    if (!own) cudaStreamCreate(&own);
    return own;
}

uint64_t stream_id(Stream *stream) {
    stream = actual(stream);
    return stream ? stream->id : 0;
}

// A fault of the kernel is told by the calls that follow, as where it runs beside the program
static Error launch(Operation *o, Stream *stream) {
    use_primary();
    struct launch_request request = {
        o->launch.kernel->id, o->launch.grid.x, o->launch.grid.y, o->launch.grid.z, o->launch.block.x,
        o->launch.block.y, o->launch.block.z, o->launch.shared_bytes, stream_id(stream), (uint64_t)o->launch.cooperative,
        o->launch.cluster.x, o->launch.cluster.y, o->launch.cluster.z, (uint64_t)o->launch.programmatic,
    };
    struct launch_reply reply;
    size_t bytes;
    lock();
    Error error = ask(MESSAGE_LAUNCH, &request, sizeof request, o->launch.parameters, o->launch.kernel->parameter_bytes,
                      &reply, sizeof reply);
    const uint8_t *text = reply_payload(&bytes);
    keep_printed(text, bytes);
    unlock();
    if (!reply.lasting) return failed(error);
    sticky(error);
    return SUCCESS;
}

static Error copy(Operation *o, Stream *stream) {
    size_t width = o->copy.width, height = o->copy.height, depth = o->copy.depth;
    if (!reachable(o->copy.to, o->copy.to_pitch, o->copy.to_slice, width, height, depth)
        || !reachable(o->copy.from, o->copy.from_pitch, o->copy.from_slice, width, height, depth))
        return failed(INVALID_VALUE);
    if (o->copy.height == 1 && o->copy.depth == 1) memmove(o->copy.to, o->copy.from, o->copy.width);
    else
        for (size_t z = 0; z < o->copy.depth; z++)
            for (size_t y = 0; y < o->copy.height; y++)
                memmove(o->copy.to + z * o->copy.to_slice + y * o->copy.to_pitch,
                        o->copy.from + z * o->copy.from_slice + y * o->copy.from_pitch, o->copy.width);
    uint8_t *start;
    size_t bytes;
    int to = kind_of(o->copy.to, &start, &bytes) >= DEVICE_MEMORY;
    int from = kind_of(o->copy.from, &start, &bytes) >= DEVICE_MEMORY;
    struct transfer_request request = {
        stream_id(stream), o->copy.width * o->copy.height * o->copy.depth, (uint64_t)(2 * from + to),
    };
    tell(MESSAGE_TRANSFER, &request, sizeof request, NULL, 0);
    return failed(SUCCESS);
}

static Error fill(Operation *o, Stream *stream) {
    if (!reachable(o->fill.to, o->fill.pitch, o->fill.slice, o->fill.width, o->fill.height, o->fill.depth))
        return failed(INVALID_VALUE);
    for (size_t z = 0; z < o->fill.depth; z++)
        for (size_t y = 0; y < o->fill.height; y++) {
            uint8_t *row = o->fill.to + z * o->fill.slice + y * o->fill.pitch;
            if (o->fill.element_bytes == 1) memset(row, (int)o->fill.value, o->fill.width);
            else
                for (size_t x = 0; x < o->fill.width; x += o->fill.element_bytes)
                    memcpy(row + x, &o->fill.value, o->fill.element_bytes);
        }
    struct transfer_request request = {stream_id(stream), o->fill.width * o->fill.height * o->fill.depth, 4};
    tell(MESSAGE_TRANSFER, &request, sizeof request, NULL, 0);
    return failed(SUCCESS);
}

static Error event(Operation *o, Stream *stream) {
    struct record_request request = {o->event.event->id, stream_id(stream)};
    tell(o->what == RECORD ? MESSAGE_RECORD : MESSAGE_WAIT, &request, sizeof request, NULL, 0);
    if (o->what == RECORD) o->event.event->recorded = 1;
    return failed(SUCCESS);
}

Error perform(Operation *o, Stream *stream) {
    if (failed(SUCCESS)) return failed(SUCCESS);  // a fault: nothing is done any more
    switch (o->what) {
        case LAUNCH: return launch(o, stream);
        case COPY: return copy(o, stream);
        case FILL: return fill(o, stream);
        case CALL: o->call.function(o->call.argument); return failed(SUCCESS);
        case RECORD: case WAIT: return event(o, stream);
        case RELEASE: return release((void *)o->memory.address);
        case CHILD: return replay(o->child.graph, stream);
        case CONDITION: return decide(o, stream);
        default: return failed(SUCCESS);
    }
}

void capture(Stream *stream, Operation *operation);
void invalidate(Graph *captured);
void join(Stream *stream, Graph *graph);
void record_in_capture(Event *event, Stream *stream);
void follow(Tails *tails, struct Node *const *before, size_t count);

Error submit(Operation *operation, Stream *stream) {
    CHECK_STREAM(stream);
    Stream *to = actual(stream);
    Error broken = to ? SUCCESS : breaks_capture(1);
    if (broken) return failed(broken);
    if (!to || !to->capture) return perform(operation, to);
    if (operation->what == RELEASE) operation->what = NOTHING;  // kept: the graph may be launched again
    if (operation->what == RECORD) record_in_capture(operation->event.event, to);
    else capture(to, operation);
    return failed(SUCCESS);
}

void tell_stream(const Stream *stream) {
    struct stream_request request = {stream->id, stream->flags & 1, (uint64_t)(int64_t)stream->priority};
    tell(MESSAGE_STREAM, &request, sizeof request, NULL, 0);
}

uint64_t new_ids(uint64_t count) {
    lock();
    made += count;
    unlock();
    return made - count + 1;
}

enum { LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };
PUBLIC Error cudaStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    if (flags > 1) return failed(INVALID_VALUE);
    if (priority > LEAST_PRIORITY) priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY) priority = GREATEST_PRIORITY;
    lock();
    *stream = calloc(1, sizeof **stream);
    **stream = (Stream){.id = ++made, .flags = flags, .priority = priority};
    add_handle(*stream);
    tell_stream(*stream);
    unlock();
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamCreateWithFlags(Stream **stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
PUBLIC Error cudaStreamCreate(Stream **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
PUBLIC Error cudaStreamDestroy(Stream *stream) {
    return (uintptr_t)stream < 3 ? failed(stream ? SUCCESS : INVALID_HANDLE) : destroy(stream);
}
// Nobody can wait for what is not done but captured
static int waits_in_capture(Stream *stream) {
    if (stream && stream->capture) invalidate(stream->capture);
    return stream && stream->capture;
}
PUBLIC Error cudaStreamSynchronize(Stream *stream) {
    CHECK_STREAM(stream);
    Stream *on = actual(stream);
    if (waits_in_capture(on)) return failed(CAPTURE_UNSUPPORTED);
    struct synchronize_request request = {on ? on->id : 0, 0};
    tell(MESSAGE_SYNCHRONIZE, &request, sizeof request, NULL, 0);
    print_pending();
    return failed(SUCCESS);
}
PUBLIC Error cudaDeviceSynchronize(void) {
    use_primary();
    Error broken = breaks_capture(0);
    if (broken) return failed(broken);
    struct synchronize_request request = {0, 1};
    tell(MESSAGE_SYNCHRONIZE, &request, sizeof request, NULL, 0);
    print_pending();
    return failed(SUCCESS);
}
PUBLIC Error cudaThreadSynchronize(void) { return cudaDeviceSynchronize(); }
PUBLIC Error cudaStreamQuery(Stream *stream) {  // the answer is that all is done: from now on it is
    CHECK_STREAM(stream);
    Stream *on = actual(stream);
    if (waits_in_capture(on)) return failed(CAPTURE_UNSUPPORTED);
    struct synchronize_request request = {on ? on->id : 0, 0};
    tell(MESSAGE_SYNCHRONIZE, &request, sizeof request, NULL, 0);
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamGetFlags(Stream *stream, unsigned *flags) {
    CHECK_STREAM(stream);
    *flags = actual(stream) ? actual(stream)->flags : 0;
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamGetPriority(Stream *stream, int *priority) {
    CHECK_STREAM(stream);
    *priority = actual(stream) ? actual(stream)->priority : 0;
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamGetId(Stream *stream, unsigned long long *id) {
    CHECK_STREAM(stream);
    *id = stream_id(stream);
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamGetDevice(Stream *stream, int *device) { (void)stream; *device = 0; return failed(SUCCESS); }
PUBLIC Error cudaStreamSetAttribute(Stream *stream, int attribute, const void *value) {
    (void)stream, (void)attribute, (void)value;
    return failed(SUCCESS);
}
PUBLIC Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = LEAST_PRIORITY;
    if (greatest) *greatest = GREATEST_PRIORITY;
    return failed(SUCCESS);
}
enum { EXTERNAL = 1, UNTIMED = 2, EVENT_FLAGS = 7 };  // of a graph that is captured: a node of its own; of an event

PUBLIC Error cudaStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    CHECK_STREAM(stream);
    if (!is_handle(event)) return failed(INVALID_HANDLE);
    Stream *on = actual(stream);
    if (on && event->capture && !(flags & EXTERNAL)) {  // the stream joins the capture that the event was recorded in
        if (!on->capture) join(on, event->capture);
        follow(&on->tails, event->tails.nodes, event->tails.count);
        return failed(SUCCESS);
    }
    if (event->captured && !(flags & EXTERNAL)) return failed(CAPTURED_EVENT);  // in a capture that has ended
    Operation operation = {.what = WAIT, .event = {event}};
    return submit(&operation, stream);
}
PUBLIC Error cudaLaunchHostFunc(Stream *stream, void (*function)(void *), void *argument) {
    Operation operation = {.what = CALL, .call = {function, argument}};
    return submit(&operation, stream);
}
PUBLIC Error cudaStreamAddCallback(Stream *stream, void (*function)(Stream *, Error, void *), void *argument,
                                   unsigned flags) {
    (void)flags;
    print_pending();
    function(stream, SUCCESS, argument);
    return failed(SUCCESS);
}

PUBLIC Error cudaEventCreateWithFlags(Event **event, unsigned flags) {
    if (flags & ~EVENT_FLAGS) return failed(INVALID_VALUE);
    lock();
    *event = calloc(1, sizeof **event);
    **event = (Event){.id = ++made, .untimed = (flags & UNTIMED) != 0};
    add_handle(*event);
    unlock();
    return failed(SUCCESS);
}
PUBLIC Error cudaEventCreate(Event **event) { return cudaEventCreateWithFlags(event, 0); }
PUBLIC Error cudaEventDestroy(Event *event) {
    return destroy(event);
}
PUBLIC Error cudaEventRecord(Event *event, Stream *stream) {
    if (!is_handle(event)) return failed(INVALID_HANDLE);
    event->capture = NULL, event->captured = 0;
    Operation operation = {.what = RECORD, .event = {event}};
    return submit(&operation, stream);
}
PUBLIC Error cudaEventRecordWithFlags(Event *event, Stream *stream, unsigned flags) {
    CHECK_STREAM(stream);
    Stream *on = actual(stream);
    if (!(flags & EXTERNAL) || !on || !on->capture) return cudaEventRecord(event, stream);
    if (!is_handle(event)) return failed(INVALID_HANDLE);
    Operation operation = {.what = RECORD, .event = {event}};
    event->capture = NULL, event->captured = 0, capture(on, &operation);
    return failed(SUCCESS);
}
PUBLIC Error cudaEventQuery(Event *event) {
    if (!is_handle(event)) return failed(INVALID_HANDLE);
    struct finish_request request = {event->id};
    tell(MESSAGE_FINISH, &request, sizeof request, NULL, 0);
    return failed(SUCCESS);
}
PUBLIC Error cudaEventSynchronize(Event *event) {
    print_pending();
    return cudaEventQuery(event);
}
PUBLIC Error cudaEventElapsedTime(float *milliseconds, Event *start, Event *end) {
    if (!is_handle(start) || !is_handle(end) || !start->recorded || !end->recorded) return failed(INVALID_HANDLE);
    if (start->untimed || end->untimed) return failed(INVALID_HANDLE);
    struct elapsed_request request = {start->id, end->id};
    struct elapsed_reply reply = {0};
    Error error = ASK(ELAPSED, request, reply);
    *milliseconds = (float)((double)(int64_t)reply.picoseconds * 1e-9);
    return failed(error);
}
PUBLIC Error cudaEventElapsedTime_v2(float *milliseconds, Event *start, Event *end) {
    return cudaEventElapsedTime(milliseconds, start, end);
}
