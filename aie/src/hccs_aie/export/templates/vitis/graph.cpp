#include "hccs_graph.hpp"

hccs_graph graph;

int main() {
    graph.init();
    graph.run(1);
    graph.end();
    return 0;
}
