/*: # One

What this file is for. It runs in [4 KB]{.fact}, `=v("h200-x","a",1,"ms")` ms. :*/
#include "gemv.cuh"

//> alpha
enum { FIRST = 3, SECOND, THIRD = SECOND * 2 };
int alpha(void) { return FIRST; }
//< alpha

/*: ## The second part

It stands right above beta. :*/
//> beta
int beta(void) {
  return THIRD; // eight
}
//< beta
