// See odr_main.cpp.
#include "bray/async_client.hpp"
#include "bray/client.hpp"
#include "bray/message.hpp"

std::string ask(bray::Client& client);

std::string ask(bray::Client& client) { return client.call("x"); }
