/*: ## One launch a token

The final kernel, asked for one token at a time. All waves are in one cooperative launch, and the barrier between them is the card's own. :*/
#include "chapters/chapter.h"

//> barrier_chapter
const Chapter chapter = {.name = "ch06", .launch = 1, .sync = SYNC_BARRIER};
//< barrier_chapter
