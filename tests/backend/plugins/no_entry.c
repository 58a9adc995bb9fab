/* A library that is no back end. */
int pk_something_else(void);

int pk_something_else(void)
{
    return 1;
}
