// Graphs: operations with what each depends on.
#pragma once
#include "shim.h"

typedef struct Node { Operation operation; struct Node **before; size_t before_count; Graph *owner; int enabled; } Node;
typedef struct { uint32_t *value, initial; } Default;  // of a condition, at each launch
struct Graph { Node **nodes; size_t count, room; int done, invalid; Default *defaults; size_t default_count; uint64_t ids;
               Stream **joined; size_t joined_count;  // streams that joined its capture
               Event **recorded; size_t recorded_count;  // events that were recorded in it
               uint64_t launched; };  // the event behind its last launch: the next one waits for it
void tell_stream(const Stream *stream);
uint64_t new_ids(uint64_t count);  // the first of so many
