/* The tasks of this build: one word each, for the file of that name in this folder. */
#pragma once

#define TASKS(X) X(classify) X(classify_text) X(language) X(equation)
