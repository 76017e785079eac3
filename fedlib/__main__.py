from fedlib.cli import main

main()
