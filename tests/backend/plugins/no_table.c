/* A back end that has no table to give. */
const void *pk_backend_entry(void);

const void *pk_backend_entry(void)
{
    return 0;
}
