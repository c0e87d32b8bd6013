/*: ## Up to 64 tokens a launch

The same kernel again. The host asks for as many tokens as a launch may have. :*/
#include "chapters/chapter.h"

//> token_loop_chapter
const Chapter chapter = {.name = "ch11", .launch = GPU_LAUNCH, .sync = SYNC_BARRIER};
//< token_loop_chapter
