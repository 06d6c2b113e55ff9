module stavedev

go 1.21
