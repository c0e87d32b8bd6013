/*: ## The tape

The other final kernel: hand-offs of data instead of barriers, weights that run ahead. :*/
#include "chapters/chapter.h"

//> tape_chapter
const Chapter chapter = {.name = "ch13", .launch = GPU_LAUNCH, .sync = SYNC_DATA};
//< tape_chapter
