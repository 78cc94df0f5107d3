// A server in C++ that answers from another thread, and a client that calls it:
//
//   c++ -std=c++17 -o later later.cpp $(pkg-config --cflags --libs rpcrdma) -pthread
#include <rpcrdma.h>

#include <cstdio>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

constexpr rpcrdma_procedure SQUARE{0x20000003, 1, 1};

void check(int result)
{
    if (result < 0)
        throw std::runtime_error(rpcrdma_error_text());
}

// Ends any handle.
struct End {
    void operator()(rpcrdma_server *it) const { rpcrdma_server_free(it); }
    void operator()(rpcrdma_client *it) const { rpcrdma_client_free(it); }
    void operator()(rpcrdma_call *it) const { rpcrdma_call_free(it); }
};
template <typename T> using Handle = std::unique_ptr<T, End>;

// Runs on the library's thread, which it must not hold up, and which no exception may leave.
int serve(void *user, rpcrdma_call *call) noexcept
{
    std::uint32_t number;
    rpcrdma_call *later;
    if (int error = rpcrdma_get_u32(call, &number))
        return error;
    if (int error = rpcrdma_call_later(call, &later))
        return error;
    *static_cast<std::future<void> *>(user) = std::async(std::launch::async, [=] {
        rpcrdma_put_u32(later, number * number);
        rpcrdma_call_answer(later, RPCRDMA_OK);
    });
    return RPCRDMA_OK;
}

} // namespace

int main(int count, char **words)
try {
    const std::string address = count > 1 ? words[1] : "shm:later";
    std::future<void> worker;
    rpcrdma_service service{};
    service.program = SQUARE.program;
    service.version_low = service.version_high = 1;
    service.call = serve;
    service.user = &worker;
    rpcrdma_server *server;
    check(rpcrdma_server_start(address.c_str(), &service, 1, nullptr, &server));
    const Handle<rpcrdma_server> server_end(server);
    rpcrdma_client *client;
    check(rpcrdma_client_connect(address.c_str(), nullptr, &client));
    const Handle<rpcrdma_client> client_end(client);
    rpcrdma_call *call;
    check(rpcrdma_client_call(client, SQUARE, &call));
    const Handle<rpcrdma_call> call_end(call);

    std::uint32_t square;
    check(rpcrdma_put_u32(call, 12));
    check(rpcrdma_call_run(call));
    check(rpcrdma_get_u32(call, &square));
    std::printf("the square of 12 is %u\n", square);
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
