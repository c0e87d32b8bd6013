/*: ## The same plan on threads :*/
#include "chapters/chapter.h"

//> cpu_chapter
const Chapter chapter = {.name = "ch15", .launch = 1, .sync = SYNC_BARRIER, .cpu = true};
//< cpu_chapter
